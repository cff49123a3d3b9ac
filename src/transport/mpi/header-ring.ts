/**
 * The receives that wait for headers, from whomever they come. MPI matches the messages of a sender in order with the
 * oldest receive, so a ring that is read in the order in which it was posted keeps the order of each sender.
 * Invariant: every slot but the one just read is posted. More senders than slots are no harm: MPI keeps the rest.
 */
import type { Region, Segment, SharedSpace } from '../../memory/index.ts';
import { ANY_SOURCE, STATUS_BYTES, STATUS_SOURCE } from './library.ts';
import type { MpiLibrary } from './library.ts';
import { allocateSlots, SLOT_BYTES } from './message-slot.ts';
import type { MessageSlot } from './message-slot.ts';

/** The MPI tag of headers; payloads have tags from 1. */
export const HEADER_TAG = 0;
const SLOTS = 32;

export class HeaderRing {
  readonly #mpi: MpiLibrary;
  readonly #communicator: number;
  readonly #segments: readonly Segment[];
  readonly #slots: readonly MessageSlot[];
  readonly #requestsAddress: number;
  readonly #flag: Region<'int32'>;
  readonly #status: Region<'int32'>;
  readonly #flagAddress: number;
  readonly #statusAddress: number;
  #head = 0;
  #ready = false;

  constructor(mpi: MpiLibrary, communicator: number, space: SharedSpace) {
    this.#mpi = mpi;
    this.#communicator = communicator;
    const { segment, slots } = allocateSlots(space, SLOTS);
    const scratch = space.allocate(SLOTS * 8 + 192);
    this.#segments = [segment, scratch];
    this.#slots = slots;
    this.#requestsAddress = Number(scratch.allocate('int64', SLOTS).address);
    this.#flag = scratch.allocate('int32', 1);
    this.#status = scratch.allocate('int32', STATUS_BYTES / 4);
    this.#flagAddress = Number(this.#flag.address);
    this.#statusAddress = Number(this.#status.address);
    for (let i = 0; i < SLOTS; i++) this.#post(i);
  }

  /** Whether the next header is there; lets MPI move what it can. */
  test(): boolean {
    if (this.#ready) return true;
    const request = this.#requestsAddress + this.#head * 8;
    const code = this.#mpi.call.MPI_Test(request, this.#flagAddress, this.#statusAddress);
    this.#ready = this.#flag.view[0] !== 0;
    if (!this.#ready) this.#mpi.check(code, 'MPI_Test for the next message');
    return this.#ready;
  }

  /** Shows the header that `test` found to the reader, and posts its slot again. */
  read(reader: (source: number, slot: MessageSlot) => void): void {
    const source = this.#status.view[STATUS_SOURCE]!;
    const at = this.#head;
    this.#head = (at + 1) % SLOTS;
    this.#ready = false;
    try {
      reader(source, this.#slots[at]!);
    } finally {
      this.#post(at);
    }
  }

  /** Takes the receives back. */
  close(): void {
    for (let i = 0; i < SLOTS; i++) {
      if (i === this.#head && this.#ready) continue;
      this.#mpi.call.MPI_Cancel(this.#requestsAddress + i * 8);
    }
    for (const segment of this.#segments) segment.close();
  }

  #post(i: number): void {
    const { byte } = this.#mpi.handles;
    const address = this.#slots[i]!.address;
    const request = this.#requestsAddress + i * 8;
    this.#mpi.check(
      this.#mpi.call.MPI_Irecv(
        address,
        SLOT_BYTES,
        byte,
        ANY_SOURCE,
        HEADER_TAG,
        this.#communicator,
        request,
      ),
      'MPI_Irecv for the next message',
    );
  }
}
