/**
 * MPI requests under way and whom they belong to, tested together by one call. Not for the receives of headers, which
 * wait all the time. Invariant: the requests lie without gaps at the front of one array; an owner is notified once.
 */
import type { Region, Segment, SharedSpace } from '../../memory/index.ts';
import { ERROR_IN_STATUS, STATUS_BYTES, STATUS_ERROR, SUCCESS } from './library.ts';
import type { MpiLibrary } from './library.ts';

/** Who waits for a request. */
export interface RequestOwner {
  /** Set by `test` when MPI is done with the memory. */
  landed: boolean;
  /** MPI's code for the request, once it has landed. */
  code: number;
}

const FIRST_CAPACITY = 64;

export class RequestTable<Owner extends RequestOwner> {
  readonly #mpi: MpiLibrary;
  readonly #space: SharedSpace;
  readonly #owners: Owner[] = [];
  #landed: Owner[] = [];
  #memory: TableMemory;

  constructor(mpi: MpiLibrary, space: SharedSpace) {
    this.#mpi = mpi;
    this.#space = space;
    this.#memory = new TableMemory(space, FIRST_CAPACITY);
  }

  get owners(): readonly Owner[] {
    return this.#owners;
  }

  get landed(): readonly Owner[] {
    return this.#landed;
  }

  /** `begin` starts a request at the address it is given and returns MPI's code. */
  start(owner: Owner, what: string, begin: (requestAddress: number) => number): void {
    const count = this.#owners.length;
    if (count === this.#memory.capacity) this.#grow();
    const code = begin(this.#memory.requestsAddress + count * 8);
    this.#mpi.check(code, what);
    this.#owners.push(owner);
  }

  /** Moves what has ended to the list that `takeLanded` gives; true if that list has anything. */
  test(): boolean {
    const count = this.#owners.length;
    if (count === 0) return this.#landed.length > 0;
    const { requests, found, indices, statuses } = this.#memory;
    const { requestsAddress, foundAddress, indicesAddress, statusesAddress } = this.#memory;
    found.view[0] = 0;
    const code = this.#mpi.call.MPI_Testsome(
      count,
      requestsAddress,
      foundAddress,
      indicesAddress,
      statusesAddress,
    );
    if (code !== SUCCESS && code !== ERROR_IN_STATUS) this.#mpi.check(code, 'MPI_Testsome');
    const ended = found.view[0];
    // Backwards, so that a request moved into a gap is never one that has ended too: MPI's indices ascend.
    for (let i = ended - 1; i >= 0; i--) {
      const index = indices.view[i]!;
      const owner = this.#owners[index]!;
      owner.landed = true;
      // Without an error among them MPI leaves the codes of statuses as they are.
      owner.code = code === SUCCESS ? SUCCESS : statuses.view[(i * STATUS_BYTES) / 4 + STATUS_ERROR]!;
      this.#landed.push(owner);
      const last = this.#owners.pop()!;
      if (last !== owner) {
        this.#owners[index] = last;
        requests.view[index] = requests.view[this.#owners.length]!;
      }
    }
    return this.#landed.length > 0;
  }

  takeLanded(): readonly Owner[] {
    if (this.#landed.length === 0) return this.#landed;
    const landed = this.#landed;
    this.#landed = [];
    return landed;
  }

  close(): void {
    this.#memory.segment.close();
    this.#owners.length = 0;
  }

  #grow(): void {
    const larger = new TableMemory(this.#space, this.#memory.capacity * 2);
    larger.requests.view.set(this.#memory.requests.view);
    this.#memory.segment.close();
    this.#memory = larger;
  }
}

class TableMemory {
  readonly capacity: number;
  readonly segment: Segment;
  readonly requests: Region<'int64'>;
  readonly indices: Region<'int32'>;
  readonly statuses: Region<'int32'>;
  readonly found: Region<'int32'>;
  readonly requestsAddress: number;
  readonly indicesAddress: number;
  readonly statusesAddress: number;
  readonly foundAddress: number;

  constructor(space: SharedSpace, capacity: number) {
    this.capacity = capacity;
    this.segment = space.allocate(capacity * (8 + 4 + STATUS_BYTES) + 256);
    this.requests = this.segment.allocate('int64', capacity);
    this.indices = this.segment.allocate('int32', capacity);
    this.statuses = this.segment.allocate('int32', (capacity * STATUS_BYTES) / 4);
    this.found = this.segment.allocate('int32', 1);
    this.requestsAddress = Number(this.requests.address);
    this.indicesAddress = Number(this.indices.address);
    this.statusesAddress = Number(this.statuses.address);
    this.foundAddress = Number(this.found.address);
  }
}
