/**
 * A worker's connection to one core of a server: dials, proves, asks and hears answers, and dials again when the connection
 * breaks, repeating whatever was not answered. What requests mean is the store's business. Invariants: every request
 * ends, with its answer or with an error that names the server; requests are sent, and sent again, in the order in
 * which they were made.
 */
import { PeerError, unpack } from '../../base/index.ts';
import type { PackedError, TributaryError } from '../../base/index.ts';
import {
  MEMBER_LIMITS,
  MessageStream,
  STRANGER_LIMITS,
  readWelcome,
  SERVER_PROTOCOL_VERSION,
  SERVER_PURPOSE,
} from '../../server/index.ts';
import type {
  Header,
  Incoming,
  ServiceAccess,
  ServiceSettings,
  StreamResources,
  StreamUser,
  Welcome,
} from '../../server/index.ts';
import {
  dialAt,
  errorName,
  isNonce,
  keyOfNonce,
  readTunnelRecord,
  Transcript,
  TUNNEL_RECORD_BYTES,
  writeTunnelRecord,
} from '../../sockets/index.ts';
import type { ByteRange, DialRecord, Host, SocketAddress } from '../../sockets/index.ts';
import type { LinePump, Pumped } from './line-pump.ts';

export interface LineOptions {
  readonly host: Host;
  /** Drives it. */
  readonly pump: LinePump;
  /** For messages: 'server 0 at 10.0.0.1:7000'. */
  readonly title: string;
  readonly address: SocketAddress;
  /** What a TLS tunnel is to be told; undefined without one. */
  readonly throughTunnel: DialRecord | undefined;
  readonly access: ServiceAccess;
  readonly worker: number;
  readonly incarnation: string;
  readonly settings: ServiceSettings;
  readonly resources: StreamResources;
  /** How long a broken connection is tried again before what waits for it fails, in milliseconds. */
  readonly reconnectTimeoutMs: number;
  /**
   * The server was started again and has forgotten everything. Until this is done only urgent requests are sent; then
   * those that wait.
   */
  readonly onRestart: (line: CoreLine) => Promise<void>;
}

interface Pending {
  readonly header: object;
  readonly body: readonly ByteRange[];
  /** Where the body of the answer goes, by its header. */
  readonly into: (header: Header) => readonly ByteRange[] | undefined;
  readonly resolve: (header: Header) => void;
  readonly reject: (error: TributaryError) => void;
}

const RETRY_MS = 20;

export class CoreLine implements StreamUser, Pumped {
  readonly options: LineOptions;
  readonly #pending = new Map<number, Pending>();
  /** What a new connection must be told before anything else, by name. */
  readonly #announced = new Map<string, object>();
  #stream: MessageStream | undefined;
  /** What was said on this connection until the server has proved itself, and whether it has asked for a proof. */
  #transcript: Transcript | undefined;
  #isChallenged = false;
  #isOpen = false;
  /** The process that the server was when it was met first. */
  #run: string | undefined;
  #isHeld = false;
  /** Requests that were sent while others were held back. */
  readonly #urgent = new Set<number>();
  #whenOpen: { resolve: (welcome: Welcome) => void; reject: (error: Error) => void } | undefined;
  #nextId = 1;
  #brokenAtMs: number | undefined;
  #retryAtMs = 0;
  #why = 'it did not answer';
  #end: TributaryError | undefined;

  constructor(options: LineOptions) {
    this.options = options;
    options.pump.add(this);
  }

  get fd(): number | undefined {
    return this.#stream?.fd;
  }

  get hasUnsent(): boolean {
    return this.#stream?.hasUnsent ?? false;
  }

  get isWaiting(): boolean {
    return this.#end === undefined && (this.#pending.size > 0 || this.#whenOpen !== undefined);
  }

  /** Resolves with what the server says of itself. */
  open(): Promise<Welcome> {
    return new Promise((resolve, reject) => {
      this.#whenOpen = { resolve, reject };
      this.#brokenAtMs = this.options.host.clock.nowMs();
      this.options.pump.wake();
    });
  }

  /** Sent at once if there is a connection, else when there is one again. */
  request(
    header: object,
    body: readonly ByteRange[] = [],
    into: (header: Header) => readonly ByteRange[] | undefined = () => undefined,
    isUrgent = false,
  ): Promise<Header> {
    if (this.#end) return Promise.reject(this.#end);
    return new Promise((resolve, reject) => {
      const id = this.#nextId++;
      this.#pending.set(id, { header, body, into, resolve, reject });
      if (isUrgent) this.#urgent.add(id);
      if (this.#isOpen && (isUrgent || !this.#isHeld)) {
        this.#stream!.send({ ...header, id }, body);
        this.#stream!.write();
      }
      this.options.pump.wake();
    });
  }

  /** A request that holds for this connection only: it is made again, before all others, on a new one. */
  async announce(name: string, header: object): Promise<void> {
    await this.request(header);
    this.#announced.set(name, header);
  }

  /** Nothing is said of itself on a new connection any more. */
  forgetAnnouncements(): void {
    this.#announced.clear();
  }

  /** Whatever waits fails; the line goes on. */
  failAll(error: TributaryError): void {
    const all = [...this.#pending.values()];
    this.#pending.clear();
    for (const { reject } of all) reject(error);
  }

  step(nowMs: number): void {
    if (this.#end) return;
    if (this.#stream === undefined && nowMs >= this.#retryAtMs && this.isWaiting) this.#dial();
    const stream = this.#stream;
    if (stream === undefined) return this.#lookAtTheClock(nowMs);
    if (stream.hasUnsent) stream.write();
    while (stream.ended === undefined && stream.read());
    if (stream.hasUnsent) stream.write();
    if (stream.ended !== undefined) this.#broke(stream, nowMs);
    if (!this.#isOpen) this.#lookAtTheClock(nowMs);
  }

  receive(header: Header): Incoming {
    if (!this.#isOpen) return { into: undefined, done: () => this.#greet(header) };
    const pending = this.#pending.get(header.id as number);
    if (pending === undefined) return { into: undefined, done: () => undefined };
    const hasFailed = header.error !== undefined;
    return {
      into: hasFailed ? undefined : pending.into(header),
      done: () => {
        this.#pending.delete(header.id as number);
        if (hasFailed) pending.reject(unpack(header.error as PackedError));
        else pending.resolve(header);
      },
    };
  }

  /** Whatever waits fails with this error; nothing can be asked any more. */
  close(error: TributaryError): void {
    if (this.#end) return;
    this.#end = error;
    this.options.pump.remove(this);
    this.#stream?.close();
    this.#whenOpen?.reject(error);
    for (const { reject } of this.#pending.values()) reject(error);
    this.#pending.clear();
  }

  #dial(): void {
    const { address, throughTunnel, resources, access, host } = this.options;
    const fd = dialAt(host.libc, address, 0);
    if (fd < 0) return this.#failed(errorName(fd));
    // Whoever answers there has proved nothing yet.
    const stream = new MessageStream(fd, resources, STRANGER_LIMITS, this);
    this.#stream = stream;
    this.#isChallenged = false;
    const hello = {
      ...{ kind: 'hello', version: SERVER_PROTOCOL_VERSION, namespace: access.namespace },
      nonce: host.randomHex(32),
    };
    const begin = (channel: string | undefined): void => {
      const purpose = `${SERVER_PURPOSE} ${access.namespace}`;
      this.#transcript = new Transcript(purpose, SERVER_PROTOCOL_VERSION, channel);
      this.#transcript.add(hello);
    };
    begin(undefined);
    if (throughTunnel !== undefined) {
      stream.sendPreface(writeTunnelRecord(throughTunnel));
      stream.preface = {
        bytes: TUNNEL_RECORD_BYTES,
        take: (record) => {
          const { problem, channel } = readTunnelRecord(record);
          if (problem !== undefined) stream.ended ??= problem;
          begin(channel);
        },
      };
    }
    stream.send(hello);
  }

  #greet(header: Header): void {
    const { access, worker, incarnation, settings, title } = this.options;
    if (header.kind === 'refused') {
      const error = header.error as PackedError | undefined;
      return this.close(error ? unpack(error) : refused(title, worker, access.namespace));
    }
    const transcript = this.#transcript!;
    const key = keyOfNonce(access.nonce);
    transcript.add(header);
    if (header.kind === 'challenge' && !this.#isChallenged && isNonce(header.nonce)) {
      if (header.version !== SERVER_PROTOCOL_VERSION)
        return this.close(otherVersion(title, worker, header.version));
      this.#isChallenged = true;
      const claim = { kind: 'proof', worker, incarnation, settings };
      transcript.add(claim);
      return this.#stream!.send({ ...claim, proof: transcript.answer(key, 'caller') });
    }
    const welcome = readWelcome(header);
    // A server that does not know the nonce is somebody else's.
    if (!transcript.verify(key, 'listener', welcome.proof)) {
      return this.close(refused(title, worker, access.namespace));
    }
    this.#stream!.limits = MEMBER_LIMITS;
    this.#transcript = undefined;
    this.#opened(welcome);
  }

  #opened(welcome: Welcome): void {
    this.#isOpen = true;
    this.#brokenAtMs = undefined;
    this.#why = 'it did not answer';
    const isRestarted = this.#run !== undefined && this.#run !== welcome.run;
    this.#run = welcome.run;
    const waiting = [...this.#pending.keys()];
    const prepared = isRestarted ? this.options.onRestart(this) : this.#announceAgain();
    this.#isHeld = true;
    const stream = this.#stream;
    prepared.then(
      () => {
        // Unless it broke again meanwhile.
        if (this.#stream === stream) this.#release(waiting);
      },
      (error: TributaryError) => this.close(error),
    );
    this.#whenOpen?.resolve(welcome);
    this.#whenOpen = undefined;
  }

  /** What holds for a connection must be there before anything else is asked. */
  async #announceAgain(): Promise<void> {
    const again = [...this.#announced.values()];
    await Promise.all(again.map((header) => this.request(header, [], () => undefined, true)));
  }

  #release(waiting: readonly number[]): void {
    this.#isHeld = false;
    const isOld = new Set(waiting);
    const ids = [
      ...waiting,
      ...[...this.#pending.keys()].filter((id) => !isOld.has(id) && !this.#urgent.has(id)),
    ];
    for (const id of ids) {
      const pending = this.#pending.get(id);
      if (pending) this.#stream!.send({ ...pending.header, id }, pending.body);
    }
    this.#urgent.clear();
  }

  #broke(stream: MessageStream, nowMs: number): void {
    const reason = typeof stream.ended === 'string' ? stream.ended : `it ${stream.ended!.message}`;
    this.#brokenAtMs ??= nowMs;
    stream.close();
    this.#stream = undefined;
    this.#isOpen = false;
    this.#failed(reason === 'end' ? 'it closed the connection' : reason);
  }

  #failed(why: string): void {
    this.#why = why;
    this.#retryAtMs = this.options.host.clock.nowMs() + RETRY_MS;
  }

  #lookAtTheClock(nowMs: number): void {
    const { reconnectTimeoutMs, title, worker } = this.options;
    if (this.#brokenAtMs === undefined || nowMs - this.#brokenAtMs < reconnectTimeoutMs) return;
    this.close(
      new PeerError(
        'UNREACHABLE',
        `worker ${worker} has not reached ${title} for ${reconnectTimeoutMs} ms: ${this.#why}; check that the server runs and that its address is right`,
        { worker, server: title, reason: this.#why, timeoutMs: reconnectTimeoutMs },
      ),
    );
  }
}

function refused(title: string, worker: number, namespace: string): PeerError {
  return new PeerError(
    'REFUSED',
    `${title} and worker ${worker} do not have the same nonce for namespace '${namespace}', or there is no such namespace; give the worker what createService returned`,
    { server: title, worker, namespace },
  );
}

function otherVersion(title: string, worker: number, version: unknown): PeerError {
  return new PeerError(
    'REFUSED',
    `${title} speaks version ${JSON.stringify(version)} of the protocol, and worker ${worker} version ${SERVER_PROTOCOL_VERSION}; use one version of Tributary everywhere`,
    { server: title, worker, version, workerVersion: SERVER_PROTOCOL_VERSION },
  );
}
