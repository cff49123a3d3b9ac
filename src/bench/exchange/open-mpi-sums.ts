/**
 * Open MPI's own sums over regions, called through koffi: what the peer of `bench exchange` needs and no more. Not our MPI
 * transport, whose ranks first agree by messages that they call the same thing: the peer is measured without that.
 * Invariants: nothing native is loaded before `openMpiSums`; an error of MPI ends the job, as MPI does by itself.
 */
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';
import { UsageError } from '../../base/index.ts';
import type { Region } from '../../memory/index.ts';

export interface OpenMpiSums {
  readonly rank: number;
  readonly size: number;
  /** target = the sum of the sources of all ranks, which may be the target. */
  sum(target: Region<'float32'>, source: Region<'float32'>): void;
  barrier(): void;
  /** Ends MPI in this process; all ranks call it. */
  close(): void;
}

const LIBRARY = 'libmpi.so.40';
/** The address that stands for 'the source is where the target is'. */
const IN_PLACE = 1;

type Call = (...args: readonly (number | bigint | Int32Array)[]) => number;

/** All ranks of the job call it. */
export function openMpiSums(): OpenMpiSums {
  // koffi is loaded late on purpose: importing this file must not load native code.
  const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;
  let library: Koffi.LibraryHandle;
  try {
    // Open MPI's plugins look for its symbols among the global ones.
    library = koffi.load(LIBRARY, { global: true });
  } catch (cause) {
    throw new UsageError(
      'MISSING_COMPONENT',
      `${LIBRARY} cannot be loaded; run: apt-get install openmpi-bin libopenmpi3`,
      { library: LIBRARY },
      cause,
    );
  }
  const call = (name: string, types: string[]): Call => library.func(name, 'int', types) as Call;
  const handle = (symbol: string): bigint => library.symbol(symbol) as bigint;
  // One thread calls MPI, so that it needs no locks: its fastest mode.
  call('MPI_Init', ['uint64', 'uint64'])(0, 0);
  const [world, float, add] = [
    handle('ompi_mpi_comm_world'),
    handle('ompi_mpi_float'),
    handle('ompi_mpi_op_sum'),
  ].map(Number) as [number, number, number];
  const ask = (name: string): number => {
    const answer = new Int32Array(1);
    call(name, ['uint64', 'void *'])(world, answer);
    return answer[0]!;
  };
  const allReduce = call('MPI_Allreduce', ['uint64', 'uint64', 'int', 'uint64', 'uint64', 'uint64']);
  const barrier = call('MPI_Barrier', ['uint64']);
  const finalize = call('MPI_Finalize', []);
  return {
    rank: ask('MPI_Comm_rank'),
    size: ask('MPI_Comm_size'),
    sum(target, source) {
      const from = source.byteOffset === target.byteOffset ? IN_PLACE : Number(source.address);
      allReduce(from, Number(target.address), target.length, float, add, world);
    },
    barrier: () => void barrier(world),
    close: () => void finalize(),
  };
}
