/**
 * The kernel of simulated machines as far as sockets go: the calls of `Libc` on descriptors that
 * lead to other simulated processes. Bytes arrive late, in pieces, or not at all while a link is
 * cut; connections break. Invariant: the bytes that come out of a connection are a prefix of those
 * that went in, in order, as TCP promises.
 */
import type { SharedSpace } from '../../src/memory/index.ts';
import { decodeAddress, EAGAIN, EINPROGRESS, POLLERR, POLLIN, POLLOUT } from '../../src/sockets/index.ts';
import type { Libc } from '../../src/sockets/index.ts';
import type { SimProcess, SimThread } from './process.ts';
import type { Scheduler } from './scheduler.ts';

const EBADF = 9;
const EADDRINUSE = 98;
const ECONNRESET = 104;
const ETIMEDOUT = 110;
const ECONNREFUSED = 111;
const WINDOW_BYTES = 64 * 1024;
/** How long bytes may be on their way before the sender's kernel gives the connection up. */
const USER_TIMEOUT_MS = 20_000;

export class Descriptor {
  /** Threads that sleep until it is ready for one of these. */
  readonly watchers = new Map<SimThread, number>();
  closed = false;

  readiness(): number {
    return 0;
  }

  /** Something changed: wakes those who wait for what it is ready for now. */
  wake(): void {
    if (this.watchers.size === 0) return;
    const ready = this.readiness();
    for (const [thread, wanted] of this.watchers) if ((ready & wanted) !== 0) thread.wake();
  }
}

/** A descriptor, and what a thread waits for there. */
export interface Watched {
  readonly descriptor: Descriptor;
  readonly wanted: number;
}

class Bell extends Descriptor {
  rung = false;

  override readiness(): number {
    return this.rung ? POLLIN : 0;
  }
}

class Listener extends Descriptor {
  port = 0;
  readonly waiting: Socket[] = [];

  override readiness(): number {
    return this.waiting.length > 0 ? POLLIN : 0;
  }
}

class Socket extends Descriptor {
  readonly process: SimProcess;
  peer: Socket | undefined;
  isConnected = false;
  /** What has arrived. */
  readonly inbox: Uint8Array[] = [];
  /** Sent by this end and not taken by the other. */
  unread = 0;
  /** On their way to the peer, in order. */
  readonly flying: { readonly sentMs: number; readonly atMs: number; readonly arrive: () => void }[] = [];
  hasEnded = false;
  errno = 0;

  constructor(process: SimProcess) {
    super();
    this.process = process;
  }

  override readiness(): number {
    if (this.errno !== 0) return POLLERR | POLLIN;
    const canRead = this.inbox.length > 0 || this.hasEnded ? POLLIN : 0;
    return canRead | (this.isConnected && this.unread < WINDOW_BYTES ? POLLOUT : 0);
  }

  arrive(bytes: Uint8Array): void {
    this.inbox.push(bytes);
    this.wake();
  }

  /** Some of what has arrived. */
  take(most: number): Uint8Array {
    const parts: Uint8Array[] = [];
    let taken = 0;
    while (taken < most && this.inbox.length > 0) {
      const first = this.inbox[0]!;
      const part = first.subarray(0, most - taken);
      parts.push(part);
      taken += part.length;
      if (part.length === first.length) this.inbox.shift();
      else this.inbox[0] = first.subarray(part.length);
    }
    if (this.peer) {
      this.peer.unread -= taken;
      this.peer.wake();
    }
    return parts.length === 1 ? parts[0]! : Buffer.concat(parts);
  }

  fail(errno: number): void {
    if (this.closed || this.errno !== 0) return;
    this.errno = errno;
    this.wake();
  }
}

/** Says what becomes of bytes between two processes. */
export interface Links {
  /** When the link from one to the other carries bytes again; a time in the past: it does now. */
  cutUntilMs(from: SimProcess, to: SimProcess): number;
  delayMs(from: SimProcess, to: SimProcess): number;
  /** A process is about to send. May end it, or the connection. */
  beforeSend(from: SimProcess, to: SimProcess): 'goes' | 'resets';
}

export class Network {
  readonly #scheduler: Scheduler;
  readonly #space: SharedSpace;
  readonly #memory: DataView;
  readonly #base: number;
  readonly #listeners = new Map<number, Listener>();
  #nextPort = 40_000;
  links!: Links;

  constructor(scheduler: Scheduler, space: SharedSpace) {
    this.#scheduler = scheduler;
    this.#space = space;
    this.#memory = new DataView(space.buffer);
    this.#base = Number(space.baseAddress);
  }

  /**
   * The process is gone: its kernel closes what it had open. `inSilence`: nobody hears of it, as
   * when the power is cut.
   */
  end(process: SimProcess, inSilence: boolean): void {
    for (const descriptor of process.descriptors.values()) {
      if (inSilence && descriptor instanceof Socket) descriptor.closed = true;
      else this.#close(descriptor);
    }
    if (!inSilence) process.descriptors.clear();
  }

  /** The machine is back: it knows nothing of the connections that it had. */
  resetAll(process: SimProcess): void {
    for (const descriptor of process.descriptors.values()) {
      if (descriptor instanceof Socket) descriptor.peer?.fail(ECONNRESET);
      else this.#close(descriptor);
    }
    process.descriptors.clear();
  }

  callsFor(thread: SimThread): Libc {
    const { process } = thread;
    const find = (fd: number): Descriptor | undefined => process.descriptors.get(fd);
    const add = (descriptor: Descriptor): number => {
      const fd = process.nextDescriptor++;
      process.descriptors.set(fd, descriptor);
      return fd;
    };
    const socketOf = (fd: number): Socket | undefined => {
      const found = find(fd);
      return found instanceof Socket && !process.isDead ? found : undefined;
    };
    const send = (fd: number, length: number, bytesOf: (count: number) => Uint8Array): number => {
      const socket = socketOf(fd);
      if (socket === undefined) return -EBADF;
      return this.#send(socket, length, bytesOf);
    };
    const receive = (fd: number, most: number, put: (bytes: Uint8Array) => void): number => {
      const socket = socketOf(fd);
      if (socket === undefined) return -EBADF;
      return this.#receive(socket, most, put);
    };
    const inSpace = (address: number, bytes: number) =>
      new Uint8Array(this.#space.buffer, address - this.#base, bytes);

    return {
      socket: () => add(new Socket(process)),
      bind: (fd, address) => this.#bind(process, fd, decodeAddress(address).port),
      listen: () => 0,
      accept: (fd) => {
        const listener = find(fd);
        const next = listener instanceof Listener ? listener.waiting.shift() : undefined;
        if (next === undefined || process.isDead) return -EAGAIN;
        return add(next);
      },
      connect: (fd, address) => this.#connect(socketOf(fd), decodeAddress(address).port),
      localAddress: (fd, into) => {
        const found = find(fd);
        const port = found instanceof Listener ? found.port : 0;
        into.set([2, 0, port >> 8, port & 255, 127, 0, 0, 1]);
        return 0;
      },
      remoteAddress: (_, into) => {
        into.set([2, 0, 0, 0, 127, 0, 0, 1]);
        return 0;
      },
      setOption: () => 0,
      send: (fd, address, bytes) => send(fd, bytes, (count) => inSpace(address, count).slice()),
      receive: (fd, address, bytes) => receive(fd, bytes, (got) => inSpace(address, got.length).set(got)),
      copy: (to, from, bytes) => {
        const target = inSpace(to, bytes);
        target.set(inSpace(from, bytes));
      },
      receiveRanges: (fd, vectors, count) => {
        const ranges = this.#vectors(vectors, count);
        const most = ranges.reduce((sum, { byteLength }) => sum + byteLength, 0);
        return receive(fd, most, (got) => {
          let at = 0;
          for (const range of ranges) {
            const part = got.subarray(at, at + range.byteLength);
            range.set(part);
            at += part.length;
          }
        });
      },
      sendMessage: (fd, header) => {
        const at = header - this.#base;
        const ranges = this.#vectors(this.#word(at + 16), this.#word(at + 24));
        const length = ranges.reduce((sum, { byteLength }) => sum + byteLength, 0);
        return send(fd, length, (count) => Buffer.concat(ranges).subarray(0, count));
      },
      pinThread: () => 0,
      doorbell: () => add(new Bell()),
      ring: (fd) => {
        const bell = find(fd);
        if (!(bell instanceof Bell) || process.isDead) return;
        bell.rung = true;
        bell.wake();
      },
      hush: (fd) => {
        const bell = find(fd);
        if (bell instanceof Bell) bell.rung = false;
      },
      sendBytes: (fd, bytes) => send(fd, bytes.length, (count) => bytes.slice(0, count)),
      receiveBytes: (fd, into) => receive(fd, into.length, (got) => into.set(got)),
      poll: (address, count, timeoutMs) => {
        let found = 0;
        const watched: Watched[] = [];
        for (let i = 0; i < count; i++) {
          const at = address - this.#base + 8 * i;
          const fd = this.#memory.getInt32(at, true);
          const descriptor = find(fd);
          const wanted = this.#memory.getInt16(at + 4, true) | POLLERR;
          const ready = fd < 0 ? 0 : (descriptor?.readiness() ?? POLLERR) & wanted;
          this.#memory.setInt16(at + 6, ready, true);
          if (ready !== 0) found++;
          if (descriptor) watched.push({ descriptor, wanted });
        }
        if (found === 0) thread.sleep(watched, timeoutMs);
        return found;
      },
      unsentBytes: (fd) => socketOf(fd)?.unread ?? -EBADF,
      close: (fd) => {
        const descriptor = find(fd);
        if (descriptor === undefined || process.isDead) return -EBADF;
        process.descriptors.delete(fd);
        this.#close(descriptor);
        return 0;
      },
    };
  }

  #word(at: number): number {
    return this.#memory.getUint32(at, true) + this.#memory.getUint32(at + 4, true) * 2 ** 32;
  }

  #vectors(address: number, count: number): Uint8Array[] {
    return Array.from({ length: count }, (_, i) => {
      const at = address - this.#base + 16 * i;
      return new Uint8Array(this.#space.buffer, this.#word(at) - this.#base, this.#word(at + 8));
    });
  }

  #bind(process: SimProcess, fd: number, wanted: number): number {
    const port = wanted === 0 ? this.#nextPort++ : wanted;
    if (this.#listeners.has(port)) return -EADDRINUSE;
    const listener = new Listener();
    listener.port = port;
    this.#listeners.set(port, listener);
    process.descriptors.set(fd, listener);
    process.ports.add(port);
    return 0;
  }

  #connect(socket: Socket | undefined, port: number): number {
    if (socket === undefined) return -EBADF;
    const attempt = (): void => {
      if (socket.closed || socket.process.isDead) return;
      const listener = this.#listeners.get(port);
      const server = this.serverAt(port);
      if (server === undefined || listener === undefined) return socket.fail(ECONNREFUSED);
      const { nowMs } = this.#scheduler;
      const cutMs = Math.max(
        this.links.cutUntilMs(socket.process, server),
        this.links.cutUntilMs(server, socket.process),
      );
      if (cutMs > nowMs) return void this.#scheduler.after(Math.min(1000, cutMs - nowMs), undefined, attempt);
      const other = new Socket(server);
      other.peer = socket;
      socket.peer = other;
      other.isConnected = socket.isConnected = true;
      listener.waiting.push(other);
      listener.wake();
      socket.wake();
    };
    this.#scheduler.after(this.#scheduler.between(0.05, 0.5), undefined, attempt);
    return -EINPROGRESS;
  }

  /** The living process that listens there. */
  serverAt(port: number): SimProcess | undefined {
    return this.processes.find((process) => !process.isDead && process.ports.has(port));
  }

  readonly processes: SimProcess[] = [];

  /** Whether bytes of a process of that name have come to the other one and were not taken. */
  hasUnread({ descriptors }: SimProcess, from: string): boolean {
    return [...descriptors.values()].some(
      (one) => one instanceof Socket && one.inbox.length > 0 && one.peer?.process.name === from,
    );
  }

  #send(socket: Socket, length: number, bytesOf: (count: number) => Uint8Array): number {
    if (socket.errno !== 0) return -socket.errno;
    if (!socket.isConnected) return -EAGAIN;
    const room = WINDOW_BYTES - socket.unread;
    if (room <= 0) return -EAGAIN;
    const peer = socket.peer!;
    if (this.links.beforeSend(socket.process, peer.process) === 'resets') {
      socket.fail(ECONNRESET);
      peer.fail(ECONNRESET);
      return -ECONNRESET;
    }
    if (socket.process.isDead) return -EBADF;
    const { random } = this.#scheduler;
    const most = Math.min(room, length);
    // Now and then the kernel takes less than it is given.
    const count = random.below(16) === 0 ? 1 + random.below(most) : most;
    const bytes = bytesOf(count);
    socket.unread += count;
    this.#carry(socket, peer, () => peer.arrive(bytes));
    return count;
  }

  /** After everything that the socket sent before. */
  #carry(socket: Socket, peer: Socket, arrive: () => void): void {
    const { nowMs } = this.#scheduler;
    const delayMs = this.#scheduler.between(0.05, 0.3) + this.links.delayMs(socket.process, peer.process);
    const atMs = Math.max(socket.flying.at(-1)?.atMs ?? 0, nowMs + delayMs);
    socket.flying.push({ sentMs: nowMs, atMs, arrive });
    if (socket.flying.length === 1)
      this.#scheduler.after(atMs - nowMs, undefined, () => this.#land(socket, peer));
  }

  #land(socket: Socket, peer: Socket): void {
    const { nowMs } = this.#scheduler;
    const again = (ms: number) => void this.#scheduler.after(ms, undefined, () => this.#land(socket, peer));
    const next = socket.flying[0];
    if (next === undefined || peer.closed || peer.errno !== 0) return;
    const cutMs = this.links.cutUntilMs(socket.process, peer.process);
    if (cutMs > nowMs) {
      const lostMs = next.sentMs + USER_TIMEOUT_MS;
      if (nowMs >= lostMs) return socket.fail(ETIMEDOUT);
      return again(Math.min(cutMs, lostMs) - nowMs);
    }
    if (next.atMs > nowMs) return again(next.atMs - nowMs);
    socket.flying.shift();
    next.arrive();
    const following = socket.flying[0];
    if (following) again(Math.max(0, following.atMs - nowMs));
  }

  #receive(socket: Socket, most: number, put: (bytes: Uint8Array) => void): number {
    if (socket.inbox.length > 0) {
      const { random } = this.#scheduler;
      const bytes = socket.take(random.below(16) === 0 ? 1 + random.below(most) : most);
      put(bytes);
      return bytes.length;
    }
    if (socket.errno !== 0) return -socket.errno;
    return socket.hasEnded ? 0 : -EAGAIN;
  }

  #close(descriptor: Descriptor): void {
    if (descriptor.closed) return;
    descriptor.closed = true;
    if (descriptor instanceof Listener) {
      this.#listeners.delete(descriptor.port);
      for (const socket of descriptor.waiting) socket.peer?.fail(ECONNRESET);
    }
    if (!(descriptor instanceof Socket)) return;
    const { peer } = descriptor;
    if (peer === undefined) return;
    this.#carry(descriptor, peer, () => {
      peer.hasEnded = true;
      // What is sent to an end that is closed comes back as a reset, later.
      peer.isConnected = false;
      peer.wake();
    });
  }
}
