/**
 * One authenticated stream to a peer: its descriptor, a writer and a reader of frames on it, and the page that both
 * stage their bytes in. It knows nothing of matching. Invariant: the descriptor and the page are given back once.
 */
import type { Segment, SharedSpace } from '../../memory/index.ts';
import type { ByteRange, Libc, SpaceBytes } from '../../sockets/index.ts';
import { FrameReader } from './frame-reader.ts';
import { FrameWriter } from './frame-writer.ts';
import type { Frame } from './frame.ts';
import type { IncomingPart } from './messages.ts';
import type { Peer } from './peer.ts';

/** Takes the frames of all connections. */
export interface Receiver {
  admit(connection: Connection, frame: Frame): IncomingPart | undefined;
  finish(connection: Connection, part: IncomingPart): void;
}

const WRITE_BYTES = 48 * 1024;
/** Few, because the start of a large payload that comes with its header is copied once more. */
const READ_BYTES = 16 * 1024;

export class Connection {
  readonly peer: Peer;
  readonly fd: number;
  readonly writer: FrameWriter;
  readonly reader: FrameReader;
  /** The peer said that it sends nothing more. */
  saidBye = false;
  /** The kernel has all that will ever come, so what is left is little and reading need not pause. */
  isEnding = false;
  readonly #staging: Segment;
  readonly #libc: Libc;

  constructor(
    peer: Peer,
    fd: number,
    space: SharedSpace,
    bytes: SpaceBytes,
    scratch: ByteRange,
    receiver: Receiver,
    libc: Libc,
  ) {
    this.#libc = libc;
    this.peer = peer;
    this.fd = fd;
    this.#staging = space.allocate(WRITE_BYTES + READ_BYTES);
    const { byteOffset } = this.#staging;
    this.writer = new FrameWriter(fd, bytes, { byteOffset, byteLength: WRITE_BYTES }, libc);
    const readStaging = { byteOffset: byteOffset + WRITE_BYTES, byteLength: READ_BYTES };
    this.reader = new FrameReader(
      fd,
      bytes,
      readStaging,
      scratch,
      {
        admit: (frame) => receiver.admit(this, frame),
        finish: (part) => receiver.finish(this, part),
      },
      libc,
    );
  }

  close(): void {
    this.reader.ended ??= 'closed';
    this.writer.ended ??= 'closed';
    if (this.#staging.closed) return;
    this.#libc.close(this.fd);
    this.#staging.close();
  }
}
