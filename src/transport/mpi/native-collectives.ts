/**
 * Open MPI's own collectives on regions of memory, for groups of members. Not a message path: a call blocks until all
 * members of the list have made it, so the caller agrees with them beforehand. Invariant: one communicator for each list of
 * members, made by its members alone the first time they use it.
 */
import { InternalError, UsageError } from '../../base/index.ts';
import type { Region } from '../../memory/index.ts';
import { IN_PLACE, SUCCESS } from './library.ts';
import type { MpiLibrary } from './library.ts';
import type { NativeCollectives, NativeOperation } from '../transport.ts';

export type { NativeCollectives, NativeOperation };

const DTYPES: ReadonlySet<string> = new Set(['float32', 'float64', 'int32']);
type MpiType = 'float32' | 'float64' | 'int32';

export class OpenMpiCollectives implements NativeCollectives {
  readonly #mpi: MpiLibrary;
  readonly #world: number;
  readonly #rank: number;
  readonly #size: number;
  readonly #communicators = new Map<string, number>();
  #lastMembers: readonly number[] | undefined;
  #lastCommunicator = 0;

  /** `world` is a communicator of all ranks of the job. */
  constructor(mpi: MpiLibrary, world: number, rank: number, size: number) {
    this.#mpi = mpi;
    this.#world = world;
    this.#rank = rank;
    this.#size = size;
    this.#communicators.set(Array.from({ length: size }, (_, member) => member).join(), world);
  }

  allReduce(members: readonly number[], region: Region, operation: NativeOperation): void {
    const { call, handles } = this.#mpi;
    const type = DTYPES.has(region.dtype) ? handles[region.dtype as MpiType] : undefined;
    if (type === undefined) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `Open MPI's allreduce was asked for ${region.dtype}; it takes ${[...DTYPES].join(', ')} here`,
        { dtype: region.dtype },
      );
    }
    const communicator = this.#communicator(members);
    const address = Number(region.address);
    const code = call.MPI_Allreduce(IN_PLACE, address, region.length, type, handles[operation], communicator);
    // A small sum takes two microseconds; the words for its failure would take one more.
    if (code === SUCCESS) return;
    const what = `MPI_Allreduce of ${region.length} ${region.dtype} among ranks ${members.join(', ')}`;
    this.#mpi.check(code, what, { members, rank: this.#rank });
  }

  #communicator(members: readonly number[]): number {
    if (members === this.#lastMembers) return this.#lastCommunicator;
    const communicator = this.#communicators.get(members.join()) ?? this.#create(members);
    this.#lastMembers = members;
    this.#lastCommunicator = communicator;
    return communicator;
  }

  #create(members: readonly number[]): number {
    const distinct = new Set(members);
    const known = members.every((member) => Number.isInteger(member) && member >= 0 && member < this.#size);
    if (!known || distinct.size !== members.length || !distinct.has(this.#rank)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `rank ${this.#rank} called a collective among ranks ${members.join(', ')} of ${this.#size}; give each rank once, and this one among them`,
        { members, rank: this.#rank, size: this.#size },
      );
    }
    const { call, check } = this.#mpi;
    const what = `forming a communicator of ranks ${members.join(', ')}`;
    const [all, group, communicator] = [new BigInt64Array(1), new BigInt64Array(1), new BigInt64Array(1)];
    check(call.MPI_Comm_group(this.#world, all), what);
    check(call.MPI_Group_incl(Number(all[0]), members.length, Int32Array.from(members), group), what);
    check(call.MPI_Comm_create_group(this.#world, Number(group[0]), groupTag(members), communicator), what, {
      members,
      rank: this.#rank,
    });
    call.MPI_Group_free(group);
    call.MPI_Group_free(all);
    const handle = Number(communicator[0]);
    if (handle === 0) throw new InternalError('BROKEN_INVARIANT', `${what} gave no handle`, { members });
    this.#communicators.set(members.join(), handle);
    return handle;
  }
}

/** Two groups may be formed at once by different threads of the job; different tags keep them apart. */
function groupTag(members: readonly number[]): number {
  return members.reduce((hash, member) => (Math.imul(hash, 31) + member + 1) & 0x3fff, 7);
}
