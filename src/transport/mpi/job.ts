/**
 * This process as a rank of an MPI job, which mpirun or srun started; without them it is a job of one. Not the messages.
 * Invariant: MPI is started at most once in a process, and only who started it ends it.
 */
import { UsageError } from '../../base/index.ts';
import type { MpiLibrary } from './library.ts';

export interface MpiJob {
  readonly rank: number;
  readonly size: number;
  /** Of all ranks, for messages. Our own: other users of MPI in this process never mix with it. */
  readonly messages: number;
  /** Of all ranks, for MPI's collectives, whose messages would else be compared with every receive that is posted. */
  readonly collectives: number;
  /** MPI was started here, so that it is ours to end. */
  readonly startedHere: boolean;
}

const THREAD_MULTIPLE = 3;
const INTRODUCTION_BYTES = 2048;

/** All ranks of the job must call it. */
export function joinJob(mpi: MpiLibrary): MpiJob {
  const { call, handles, check } = mpi;
  const startedHere = start(mpi);
  const word = new Int32Array(1);
  check(call.MPI_Comm_rank(handles.world, word), 'MPI_Comm_rank');
  const rank = word[0]!;
  check(call.MPI_Comm_size(handles.world, word), 'MPI_Comm_size');
  const size = word[0]!;
  return { rank, size, messages: ownCommunicator(mpi), collectives: ownCommunicator(mpi), startedHere };
}

/** What each rank says of itself, by rank. All ranks of the job must call it. */
export function introduce(
  { call, handles, check }: MpiLibrary,
  { size, collectives }: MpiJob,
  text: string,
): string[] {
  const said = new Uint8Array(INTRODUCTION_BYTES);
  const { written, read } = new TextEncoder().encodeInto(text, said);
  if (read < text.length) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `what a rank says of itself has ${Buffer.byteLength(text)} bytes, at most ${said.length} are possible; shorten the name of the host`,
      { bytes: Buffer.byteLength(text), most: said.length },
    );
  }
  said.fill(0x20, written);
  const all = new Uint8Array(size * said.length);
  const { byte } = handles;
  const code = call.MPI_Allgather(said, said.length, byte, all, said.length, byte, collectives);
  check(code, `MPI_Allgather among ${size} ranks`);
  const decoder = new TextDecoder();
  return Array.from({ length: size }, (_, rank) =>
    decoder.decode(all.subarray(rank * said.length, (rank + 1) * said.length)).trimEnd(),
  );
}

function ownCommunicator({ call, handles, check }: MpiLibrary): number {
  const communicator = new BigInt64Array(1);
  check(call.MPI_Comm_dup(handles.world, communicator), 'MPI_Comm_dup');
  const handle = Number(communicator[0]);
  // By default MPI ends the process at the first error.
  check(call.MPI_Comm_set_errhandler(handle, handles.errorsReturn), 'MPI_Comm_set_errhandler');
  return handle;
}

function start(mpi: MpiLibrary): boolean {
  const { call, handles, check } = mpi;
  const flag = new Int32Array(1);
  check(call.MPI_Finalized(flag), 'MPI_Finalized');
  if (flag[0] !== 0) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      'MPI was ended in this process and cannot be started again; create one MPI transport for each process',
    );
  }
  check(call.MPI_Initialized(flag), 'MPI_Initialized');
  if (flag[0] !== 0) return false;
  check(call.MPI_Init_thread(0, 0, THREAD_MULTIPLE, flag), 'MPI_Init_thread');
  check(call.MPI_Comm_set_errhandler(handles.world, handles.errorsReturn), 'MPI_Comm_set_errhandler');
  return true;
}
