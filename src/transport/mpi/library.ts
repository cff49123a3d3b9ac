/**
 * The calls of Open MPI that the transport needs, through koffi. Not a general binding, and not for other MPI
 * libraries: the names of the handles and the layout of a status are Open MPI 4's. Loaded late, since importing this
 * file must not load native code. Invariant: every call returns MPI's code; `check` makes an error of it.
 */
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';
import { PeerError, UsageError } from '../../base/index.ts';
import type { Facts } from '../../base/index.ts';

export const ANY_SOURCE = -1;
/** The address that stands for 'the result is where the input is'. */
export const IN_PLACE = 1;
export const SUCCESS = 0;
/** Some request of a list failed; each status says which. */
export const ERROR_IN_STATUS = 18;
/** Counts of MPI are C's int. */
export const MAX_COUNT = 2 ** 31 - 1;
export const STATUS_BYTES = 24;
/** Where the fields of a status are, in words of 4 bytes. */
export const STATUS_SOURCE = 0;
export const STATUS_ERROR = 2;

const MAX_ERROR_STRING = 256;

/** Addresses and handles are numbers: those of user programs are below 2^47. */
type Call = (...args: readonly (number | Int32Array | BigInt64Array | Uint8Array)[]) => number;

const SIGNATURES = {
  MPI_Init_thread: ['uint64', 'uint64', 'int', 'void *'],
  MPI_Initialized: ['void *'],
  MPI_Finalized: ['void *'],
  MPI_Finalize: [],
  MPI_Comm_rank: ['uint64', 'void *'],
  MPI_Comm_size: ['uint64', 'void *'],
  MPI_Comm_dup: ['uint64', 'void *'],
  MPI_Comm_group: ['uint64', 'void *'],
  MPI_Comm_create_group: ['uint64', 'uint64', 'int', 'void *'],
  MPI_Comm_set_errhandler: ['uint64', 'uint64'],
  MPI_Group_incl: ['uint64', 'int', 'void *', 'void *'],
  MPI_Group_free: ['void *'],
  MPI_Isend: ['uint64', 'int', 'uint64', 'int', 'int', 'uint64', 'uint64'],
  MPI_Irecv: ['uint64', 'int', 'uint64', 'int', 'int', 'uint64', 'uint64'],
  MPI_Ibarrier: ['uint64', 'uint64'],
  MPI_Cancel: ['uint64'],
  MPI_Test: ['uint64', 'uint64', 'uint64'],
  MPI_Testsome: ['int', 'uint64', 'uint64', 'uint64', 'uint64'],
  MPI_Allgather: ['void *', 'int', 'uint64', 'void *', 'int', 'uint64', 'uint64'],
  MPI_Allreduce: ['uint64', 'uint64', 'int', 'uint64', 'uint64', 'uint64'],
  MPI_Error_string: ['int', 'void *', 'void *'],
} as const;

const HANDLES = {
  world: 'ompi_mpi_comm_world',
  errorsReturn: 'ompi_mpi_errors_return',
  byte: 'ompi_mpi_byte',
  float32: 'ompi_mpi_float',
  float64: 'ompi_mpi_double',
  int32: 'ompi_mpi_int32_t',
  sum: 'ompi_mpi_op_sum',
  min: 'ompi_mpi_op_min',
  max: 'ompi_mpi_op_max',
  product: 'ompi_mpi_op_prod',
} as const;

export interface MpiLibrary {
  readonly call: Readonly<Record<keyof typeof SIGNATURES, Call>>;
  readonly handles: Readonly<Record<keyof typeof HANDLES, number>>;
  /** Lets other threads and processes run. */
  readonly yieldProcessor: () => void;
  readonly sleep: (microseconds: number) => void;
  /** Memory outside every space; an address. */
  readonly allocate: (bytes: number) => number;
  readonly free: (address: number) => void;
  /** MPI's own words for a code. */
  readonly errorText: (code: number) => string;
  /** Throws if the code is not success; `what` names the call and the peer. */
  readonly check: (code: number, what: string, facts?: Facts) => void;
}

/** `libraryPath` as the system's loader takes it. */
export function loadMpi(libraryPath: string): MpiLibrary {
  const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;
  let library: Koffi.LibraryHandle;
  try {
    // Open MPI's plugins look for its symbols among the global ones.
    library = koffi.load(libraryPath, { global: true });
  } catch (cause) {
    throw new UsageError(
      'MISSING_COMPONENT',
      `Open MPI's library ${libraryPath} cannot be loaded (${cause instanceof Error ? cause.message : String(cause)}). Run: apt-get install openmpi-bin libopenmpi3`,
      { libraryPath },
      cause,
    );
  }
  const libc = koffi.load(null);
  const schedYield = libc.func('sched_yield', 'int', []) as Call;
  const usleep = libc.func('usleep', 'int', ['uint32']) as Call;
  const malloc = libc.func('malloc', 'uint64', ['size_t']) as Call;
  const free = libc.func('free', 'void', ['uint64']) as Call;
  const call = mapValues(SIGNATURES, (types, name) => library.func(name, 'int', [...types]) as Call);
  const handles = mapValues(HANDLES, (symbol) => Number(library.symbol(symbol) as bigint));

  function errorText(code: number): string {
    const text = new Uint8Array(MAX_ERROR_STRING + 1);
    const length = new Int32Array(1);
    call.MPI_Error_string(code, text, length);
    return Buffer.from(text.subarray(0, length[0])).toString('utf8');
  }

  return {
    call,
    handles,
    yieldProcessor: () => void schedYield(),
    sleep: (microseconds) => void usleep(microseconds),
    allocate(bytes) {
      const address = Number(malloc(bytes));
      if (address !== 0) return address;
      throw new UsageError(
        'OUT_OF_SHARED_MEMORY',
        `the system refuses ${bytes} bytes for a message that nobody wants; free memory`,
        { bytes },
      );
    },
    free: (address) => void free(address),
    errorText,
    check(code, what, facts = {}) {
      if (code === SUCCESS) return;
      throw new PeerError(
        'PEER_LOST',
        `${what} failed: MPI says '${errorText(code)}' (code ${code}); look at the output of mpirun, and start the job again`,
        { ...facts, mpiCode: code },
      );
    },
  };
}

function mapValues<K extends string, V, R>(
  table: Readonly<Record<K, V>>,
  make: (value: V, key: K) => R,
): Record<K, R> {
  const entries = Object.entries(table) as [K, V][];
  return Object.fromEntries(entries.map(([key, value]) => [key, make(value, key)])) as Record<K, R>;
}
