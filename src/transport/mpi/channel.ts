/**
 * Slots and payloads between the ranks of an MPI job: what the transport has under way as MPI knows it. It matches
 * nothing and tells nobody; mpi-transport.ts does. Invariant: memory given to MPI stays with it until its owner has
 * landed, and landed owners wait here until they are taken, so that looking for news (`test`) never loses any.
 */
import type { Region, SharedSpace } from '../../memory/index.ts';
import { HEADER_TAG, HeaderRing } from './header-ring.ts';
import type { MpiLibrary } from './library.ts';
import { HEADER_BYTES, SlotPool } from './message-slot.ts';
import type { Header, MessageSlot } from './message-slot.ts';
import { RequestTable } from './request-table.ts';
import { Meeting, PayloadDropped, SlotSending } from './transfers.ts';
import type { MessageReceiving, MessageSending, Owner } from './transfers.ts';

const MAX_PAYLOAD_TAG = 2 ** 30;

export class MpiChannel {
  readonly #mpi: MpiLibrary;
  readonly #communicator: number;
  readonly #ring: HeaderRing;
  readonly #requests: RequestTable<Owner>;
  readonly #slots: SlotPool;
  #payloadTag = 0;

  constructor(mpi: MpiLibrary, communicator: number, space: SharedSpace) {
    this.#mpi = mpi;
    this.#communicator = communicator;
    this.#ring = new HeaderRing(mpi, communicator, space);
    this.#requests = new RequestTable(mpi, space);
    this.#slots = new SlotPool(space);
  }

  /** What MPI has not finished with. */
  get underWay(): readonly Owner[] {
    return this.#requests.owners;
  }

  /** What MPI has finished with and nobody has taken yet. */
  get landed(): readonly Owner[] {
    return this.#requests.landed;
  }

  /** The payload must fit into a slot; it is copied. */
  sendSlot(peer: number, header: Header, payload?: Uint8Array): void {
    const slot = this.#slots.take();
    slot.write(header);
    if (payload) slot.inline.set(payload);
    const bytes = HEADER_BYTES + (payload?.length ?? 0);
    const { call, handles } = this.#mpi;
    this.#requests.start(new SlotSending(peer, slot), `MPI_Isend to rank ${peer}`, (request) =>
      call.MPI_Isend(slot.address, bytes, handles.byte, peer, HEADER_TAG, this.#communicator, request),
    );
  }

  /** A tag for the next payload, which no other payload under way has. */
  nextPayloadTag(): number {
    this.#payloadTag = (this.#payloadTag % MAX_PAYLOAD_TAG) + 1;
    return this.#payloadTag;
  }

  sendPayload(sending: MessageSending, region: Region, payloadTag: number): void {
    const { call, handles } = this.#mpi;
    const { peer } = sending;
    const [address, bytes] = [Number(region.address), region.byteLength];
    this.#requests.start(sending, `MPI_Isend to rank ${peer}`, (request) =>
      call.MPI_Isend(address, bytes, handles.byte, peer, payloadTag, this.#communicator, request),
    );
  }

  receivePayload(receiving: MessageReceiving, payloadTag: number): void {
    const { peer, region } = receiving;
    this.#receive(receiving, Number(region.address), region.byteLength, peer, payloadTag);
  }

  /**
   * Takes a payload from MPI and throws it away, so that its sender is not stuck. Not by a shorter receive: Open MPI 4.1.4
   * cuts a message only after it has written all of it, when it copies straight from the sender's memory.
   */
  dropPayload(peer: number, payloadTag: number, payloadBytes: number): void {
    const address = this.#mpi.allocate(payloadBytes);
    this.#receive(new PayloadDropped(peer, address), address, payloadBytes, peer, payloadTag);
  }

  /** Lands when all ranks of the job have begun a meeting. */
  beginMeeting(self: number): Meeting {
    const meeting = new Meeting(self);
    this.#requests.start(meeting, 'MPI_Ibarrier', (request) =>
      this.#mpi.call.MPI_Ibarrier(this.#communicator, request),
    );
    return meeting;
  }

  /** Whether anything has landed or come; lets MPI move what it can. */
  test(): boolean {
    const landed = this.#requests.test();
    return this.#ring.test() || landed;
  }

  takeLanded(): readonly Owner[] {
    this.#requests.test();
    const landed = this.#requests.takeLanded();
    for (const owner of landed) {
      if (owner.kind === 'slot') this.#slots.give(owner.slot);
      else if (owner.kind === 'drop') this.#mpi.free(owner.address);
    }
    return landed;
  }

  /** Shows all slots that have come, in the order of each sender; true if there were any. */
  readSlots(reader: (source: number, slot: MessageSlot) => void): boolean {
    let any = false;
    for (; this.#ring.test(); any = true) this.#ring.read(reader);
    return any;
  }

  /** Only when nothing is under way. */
  close(): void {
    this.#ring.close();
    this.#requests.close();
    this.#slots.close();
  }

  #receive(owner: Owner, address: number, bytes: number, peer: number, payloadTag: number): void {
    const { call, handles } = this.#mpi;
    this.#requests.start(owner, `MPI_Irecv from rank ${peer}`, (request) =>
      call.MPI_Irecv(address, bytes, handles.byte, peer, payloadTag, this.#communicator, request),
    );
  }
}
