/**
 * A worker's connection to one core of a server: dials, proves, asks and hears answers, and dials
 * again when the connection breaks, repeating whatever was not answered. What requests mean is the
 * store's business.
 *
 * Terms: a beat is a request that a core answers at once, sent when nothing has moved for a while,
 * so that a server that waits for other workers is told apart from one that is gone; its answer
 * names workers that are not connected. Progress is an answer to something that was asked once;
 * dialling, handshakes and what is repeated on each connection is none. Invariants: every request
 * ends, with its answer or with an error that names the server and what it closed the connection
 * for; nothing that a server says ends the line before the server has proved that it knows the
 * nonce, since it could be anybody; requests are sent, and sent again, in the order in which they
 * were made.
 */
import { PeerError, quoted, unpack } from '../../base/index.ts';
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
import type { AskedRequest, OtherWorkers } from './other-workers.ts';

export interface CorePlace {
  readonly address: SocketAddress;
  /** What a TLS tunnel is to be told; undefined without one. */
  readonly throughTunnel: DialRecord | undefined;
}

export interface LineOptions {
  readonly host: Host;
  /** Drives it. */
  readonly pump: LinePump;
  /** For messages: 'server 0 at 10.0.0.1:7000'. */
  readonly title: string;
  /** Where the core listens, in the order in which they are tried. */
  readonly places: readonly CorePlace[];
  readonly access: ServiceAccess;
  readonly worker: number;
  readonly incarnation: string;
  readonly settings: ServiceSettings;
  readonly resources: StreamResources;
  /**
   * How long there may be no progress on broken or silent connections before what waits fails, in
   * milliseconds.
   */
  readonly reconnectTimeoutMs: number;
  /**
   * The same before the first meeting, of a server that refuses the proof of this worker or gives
   * none. Default: the same.
   */
  readonly refusedTimeoutMs?: number | undefined;
  /** How long a server that is alive may leave a request unanswered, in milliseconds. */
  readonly requestTimeoutMs: number;
  /**
   * Called again and again while a server is not reached, from two seconds on, with a line for
   * people.
   */
  readonly onWaiting: (nowMs: number, line: string) => void;
  /** Reports waits for other workers. */
  readonly others: OtherWorkers;
  /**
   * The server was started again and has forgotten everything. Until this is done only urgent
   * requests are sent; then those that wait.
   */
  readonly onRestart: (line: CoreLine) => Promise<void>;
}

interface Pending {
  readonly askedAtMs: number;
  readonly header: object;
  readonly body: readonly ByteRange[];
  /** Where the body of the answer goes, by its header. */
  readonly into: (header: Header) => readonly ByteRange[] | undefined;
  readonly resolve: (header: Header) => void;
  readonly reject: (error: TributaryError) => void;
}

const RETRY_MS = 20;
/** After a refusal, which the server logs. */
const REFUSED_RETRY_MS = 500;
/** Longest reason of somebody unknown that is repeated. */
const MAX_REASON = 500;
/** Then people are told what is being tried. */
const QUIET_MS = 2000;
/**
 * Shares of `reconnectTimeoutMs` without a byte after which a beat is sent at the latest, and the
 * connection given up.
 */
const BEAT_SHARE = 1 / 4;
const SILENCE_SHARE = 1 / 2;
/** Of that time, for dialling each of several addresses once. */
const ATTEMPTS_SHARE = 1 / 2;
const NO_ANSWER = 'it did not answer';
/** Errors of a server whose disk cannot be used for the moment. */
const DISK_FAULTS = new Set(['FILE_NOT_WRITTEN', 'CHECKPOINT_NOT_WRITTEN']);

export class CoreLine implements StreamUser, Pumped {
  readonly options: LineOptions;
  readonly #pending = new Map<number, Pending>();
  /** What a new connection must be told before anything else, by name. */
  readonly #announced = new Map<string, object>();
  #stream: MessageStream | undefined;
  /**
   * What was said on this connection until the server has proved itself, and whether it has asked
   * for a proof.
   */
  #transcript: Transcript | undefined;
  #isChallenged = false;
  #isOpen = false;
  /**
   * The server was started again and refuses what it must be told, since when and whether to dial
   * later for it.
   */
  #refusedSinceMs: number | undefined;
  #isPutOff = false;
  /** The process that the server was when it was met first. */
  #run: string | undefined;
  #isHeld = false;
  /** Requests that were sent while others were held back. */
  readonly #urgent = new Set<number>();
  #whenOpen: { resolve: (welcome: Welcome) => void; reject: (error: Error) => void } | undefined;
  #nextId = 1;
  /** When the connection broke that was the first after the last progress. */
  #brokenAtMs: number | undefined;
  /** When this thread last tried to have a connection; -Infinity: it has given up. */
  #triedAtMs = -Infinity;
  /** When bytes moved last, or the first request was made that waits. */
  #movedAtMs = 0;
  /** The beat that is not answered yet. */
  #beat: { readonly id: number; readonly sentAtMs: number } | undefined;
  #retryAtMs = 0;
  /** The place that is dialled next, or was last. */
  #place = 0;
  #dialedAtMs = 0;
  #why = NO_ANSWER;
  /** Whether that is what somebody said who has not proved that it is the server. */
  #isUnproven = false;
  /** Whether this connection ends for that. */
  #isDoubted = false;
  /** What the server said when it closed the connection. */
  #lastWords: string | undefined;
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

  /**
   * Whether a connection is to be made. While this thread waits for any server it also hears of
   * those that it asks nothing, since what it waits for may depend on them: others cannot go on
   * before this worker has told them again what they lost.
   */
  #isWanted(nowMs: number): boolean {
    if (this.isWaiting) return true;
    return this.#brokenAtMs !== undefined && nowMs - this.#brokenAtMs < this.options.reconnectTimeoutMs;
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
      const askedAtMs = this.#now();
      if (this.#pending.size === 0) {
        this.#movedAtMs = askedAtMs;
        // Time in which nobody tried does not count.
        const isUntried = askedAtMs - this.#triedAtMs > QUIET_MS;
        if (this.#brokenAtMs !== undefined && isUntried) this.#brokenAtMs = askedAtMs;
      }
      this.#pending.set(id, { askedAtMs, header, body, into, resolve, reject });
      if (isUrgent) this.#urgent.add(id);
      if (this.#isOpen && (isUrgent || !this.#isHeld)) {
        this.#stream!.send({ ...header, id }, body);
        this.#stream!.write();
      }
      this.options.pump.wake();
    });
  }

  /**
   * A request that holds for this connection only: it is made again, before all others, on a new
   * one.
   */
  async announce(name: string, header: object): Promise<void> {
    await this.request(header);
    this.#announced.set(name, header);
  }

  /** Repeats all announcements, before any other request. */
  async announceAgain(): Promise<void> {
    const again = [...this.#announced.values()];
    await Promise.all(again.map((header) => this.request(header, [], () => undefined, true)));
  }

  /** Drops all announcements: new connections repeat none. */
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
    if (!this.#isOpen && this.#isWanted(nowMs)) {
      this.#triedAtMs = nowMs;
      if (this.#stream === undefined && nowMs >= this.#retryAtMs) this.#dial();
    }
    const stream = this.#stream;
    if (stream !== undefined) {
      let moved = stream.hasUnsent && stream.write();
      while (stream.ended === undefined && stream.read()) moved = true;
      if (stream.hasUnsent && stream.write()) moved = true;
      if (moved) this.#movedAtMs = nowMs;
      if (!this.#isChallenged && nowMs - this.#dialedAtMs > this.#attemptMs) stream.ended ??= NO_ANSWER;
      if (stream.ended !== undefined) this.#broke(stream, nowMs);
      else if (this.#isOpen) this.#listenForLife(stream, nowMs);
    }
    this.#lookAtTheClock(nowMs);
  }

  receive(header: Header): Incoming {
    if (!this.#isOpen) return { into: undefined, done: () => this.#greet(header) };
    if (header.kind === 'closed') {
      return { into: undefined, done: () => (this.#lastWords = unpack(header.error as PackedError).message) };
    }
    if (header.id === this.#beat?.id) {
      this.#progress();
      this.options.others.told(this.options.title, header.absent);
    }
    const pending = this.#pending.get(header.id as number);
    if (pending === undefined) return { into: undefined, done: () => undefined };
    const hasFailed = header.error !== undefined;
    return {
      into: hasFailed ? undefined : pending.into(header),
      done: () => {
        this.#pending.delete(header.id as number);
        // What each connection is told anew can be answered for ever.
        if (!this.#urgent.has(header.id as number)) this.#progress();
        if (hasFailed) return pending.reject(unpack(header.error as PackedError));
        this.options.others.answered(pending.header as AskedRequest);
        pending.resolve(header);
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

  /** An address that swallows everything must leave time for the others. */
  get #attemptMs(): number {
    const { places, reconnectTimeoutMs } = this.options;
    return places.length === 1 ? Infinity : (reconnectTimeoutMs * ATTEMPTS_SHARE) / places.length;
  }

  #dial(): void {
    const { places, resources, access, host, reconnectTimeoutMs } = this.options;
    const { address, throughTunnel } = places[this.#place]!;
    this.#dialedAtMs = this.#now();
    const fd = dialAt(host.libc, address, 0, reconnectTimeoutMs);
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
    const { access, worker, incarnation, settings } = this.options;
    const transcript = this.#transcript!;
    const key = keyOfNonce(access.nonce);
    transcript.add(header);
    if (header.kind === 'refused') {
      const error = header.error as PackedError | undefined;
      if (this.#isChallenged && transcript.verify(key, 'listener', header.proof))
        return this.close(unpack(error!));
      return this.#doubt(error ? `said ${reasonOf(error)}` : 'refused the proof of this worker');
    }
    if (header.kind === 'challenge' && !this.#isChallenged && isNonce(header.nonce)) {
      if (header.version !== SERVER_PROTOCOL_VERSION)
        return this.#doubt(otherVersion(worker, header.version));
      this.#isChallenged = true;
      const claim = { kind: 'proof', worker, incarnation, settings };
      transcript.add(claim);
      return this.#stream!.send({ ...claim, proof: transcript.answer(key, 'caller') });
    }
    const welcome = readWelcome(header);
    // A server that does not know the nonce is somebody else's.
    if (!transcript.verify(key, 'listener', welcome.proof)) return this.#doubt('gave a wrong proof of it');
    this.#stream!.limits = MEMBER_LIMITS;
    this.#transcript = undefined;
    this.#opened(welcome);
  }

  /**
   * Whoever answers there may be anybody, or the server before its service is there: it is asked
   * again.
   */
  #doubt(said: string): void {
    const { namespace } = this.options.access;
    this.#stream!.ended ??= `what answers there has not proved that it knows the nonce of namespace '${namespace}', and ${said}`;
    this.#isDoubted = true;
  }

  #opened(welcome: Welcome): void {
    this.#isOpen = true;
    // After a break the first place is tried first.
    this.#place = -1;
    this.#lastWords = undefined;
    // The first time nothing is asked yet, so there is no other progress to be made.
    if (this.#whenOpen !== undefined) this.#progress();
    const isRestarted = this.#run !== undefined && this.#run !== welcome.run;
    this.#run ??= welcome.run;
    const waiting = [...this.#pending.keys()];
    const prepared = isRestarted ? this.options.onRestart(this) : this.announceAgain();
    this.#isHeld = true;
    const stream = this.#stream;
    prepared.then(
      () => {
        // Unless it broke again meanwhile: then a server that was started again has to be told once
        // more.
        if (this.#stream !== stream) return;
        this.#run = welcome.run;
        this.#refusedSinceMs = undefined;
        this.#release(waiting);
      },
      (error: TributaryError) => {
        if (error.code !== 'REWOUND' && !this.#mayPass(error)) return this.close(error);
        if (this.#stream !== stream) return;
        // Going back tells the server everything that it needs.
        if (error.code === 'REWOUND') return this.#release(waiting);
        stream!.ended ??= error.message;
        this.#isPutOff = true;
      },
    );
    this.#whenOpen?.resolve(welcome);
    this.#whenOpen = undefined;
  }

  /**
   * A server that was started again and cannot write yet is told again, as one that is not reached
   * is dialled again.
   */
  #mayPass({ code }: TributaryError): boolean {
    const nowMs = this.#now();
    this.#refusedSinceMs ??= nowMs;
    return DISK_FAULTS.has(code) && nowMs - this.#refusedSinceMs < this.options.reconnectTimeoutMs;
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
    this.#beat = undefined;
    const closed = this.#lastWords
      ? `it closed the connection: ${this.#lastWords}`
      : 'it closed the connection';
    if (this.#isDoubted) this.#failed(reason, true);
    else this.#failed(this.#lastWords !== undefined || reason === 'end' ? closed : reason);
    if (this.#isDoubted || this.#isPutOff) this.#retryAtMs = this.#now() + REFUSED_RETRY_MS;
    this.#isDoubted = this.#isPutOff = false;
  }

  #failed(why: string, isUnproven = false): void {
    this.#why = why;
    this.#isUnproven = isUnproven;
    // Waits before the first one only: a server that comes back is found where it was.
    this.#place = (this.#place + 1) % this.options.places.length;
    this.#retryAtMs = this.#now() + (this.#place === 0 ? RETRY_MS : 0);
  }

  /** The server has done something for this worker: from here on it has all the time again. */
  #progress(): void {
    this.#brokenAtMs = undefined;
    this.#beat = undefined;
    this.#why = NO_ANSWER;
    this.#isUnproven = false;
  }

  /** An answer may take as long as other workers do, but a beat may not. */
  #listenForLife(stream: MessageStream, nowMs: number): void {
    const { reconnectTimeoutMs } = this.options;
    const quietMs = nowMs - this.#movedAtMs;
    if (this.#beat === undefined) {
      if (quietMs < Math.min(reconnectTimeoutMs * BEAT_SHARE, QUIET_MS)) return;
      this.#beat = { id: this.#nextId++, sentAtMs: nowMs };
      stream.send({ op: 'beat', id: this.#beat.id });
      stream.write();
      return;
    }
    // Since the beat, too: this thread may have been busy all the time before it.
    const awaitedMs = nowMs - this.#beat.sentAtMs;
    if (quietMs < reconnectTimeoutMs * SILENCE_SHARE || awaitedMs < reconnectTimeoutMs * BEAT_SHARE) return;
    stream.ended = `it has sent nothing for ${Math.round(quietMs)} ms`;
    // Where nobody asks anything this thread may have looked elsewhere for long.
    this.#brokenAtMs ??= this.#pending.size > 0 ? this.#movedAtMs : nowMs;
    this.#broke(stream, nowMs);
  }

  #lookAtTheClock(nowMs: number): void {
    const { requestTimeoutMs, title, worker, onWaiting } = this.options;
    const isStranger = this.#isUnproven && this.#run === undefined;
    const { refusedTimeoutMs = this.options.reconnectTimeoutMs } = this.options;
    const reconnectTimeoutMs = isStranger ? refusedTimeoutMs : this.options.reconnectTimeoutMs;
    const [oldest] = this.#pending.values();
    if (oldest && nowMs - oldest.askedAtMs >= requestTimeoutMs) return this.close(this.#unanswered(oldest));
    if (oldest && this.#isOpen)
      this.options.others.awaited(oldest.header as AskedRequest, title, nowMs - oldest.askedAtMs, nowMs);
    if (this.#isOpen || this.#brokenAtMs === undefined) return;
    const brokenMs = nowMs - this.#brokenAtMs;
    if (brokenMs >= reconnectTimeoutMs && !this.isWaiting) return this.#giveUp();
    const nextStep = this.#isUnproven
      ? `compare the service's name (access.namespace) and the nonce with what createService returned, or with the file that 'tributary server' names when it starts (nonces/${this.options.access.namespace}.nonce), and check the address`
      : 'check that the server runs and that its address is right';
    if (brokenMs >= QUIET_MS) {
      const seconds = (ms: number) => Math.floor(ms / 1000);
      onWaiting(
        nowMs,
        `worker ${worker} has been trying ${title} for ${seconds(brokenMs)} s: ${this.#why}; ${nextStep}; it gives up after ${seconds(reconnectTimeoutMs)} s (${isStranger ? 'refusedTimeoutMs' : 'reconnectTimeoutMs'})`,
      );
    }
    if (brokenMs < reconnectTimeoutMs) return;
    this.close(
      new PeerError(
        this.#isUnproven ? 'REFUSED' : 'UNREACHABLE',
        `worker ${worker} has not reached ${title} for ${reconnectTimeoutMs} ms: ${this.#why}; ${nextStep}`,
        { worker, server: title, reason: this.#why, timeoutMs: reconnectTimeoutMs },
      ),
    );
  }

  /** Nobody asks anything: whoever does later has all the time, and a connection of his own. */
  #giveUp(): void {
    this.#triedAtMs = -Infinity;
    this.#stream?.close();
    this.#stream = undefined;
  }

  #unanswered({ header }: Pending): PeerError {
    const { requestTimeoutMs, title, worker } = this.options;
    const { op } = header as AskedRequest;
    return new PeerError(
      'TIMEOUT',
      `worker ${worker} has waited ${requestTimeoutMs} ms for the answer of ${title} to '${op}'; find out whether other workers are missing, or raise requestTimeoutMs`,
      { worker, server: title, request: op, timeoutMs: requestTimeoutMs },
    );
  }

  /** The one place where time comes from, but for what the pump hands over. */
  #now(): number {
    return this.options.host.clock.nowMs();
  }
}

/** As one line that cannot pass for something else on a terminal: anybody may have written it. */
function reasonOf({ message }: PackedError): string {
  return quoted(message, MAX_REASON);
}

function otherVersion(worker: number, version: unknown): string {
  const other = quoted(version, MAX_REASON);
  return `speaks version ${other} of the protocol, and worker ${worker} version ${SERVER_PROTOCOL_VERSION}; use one version of Tributary everywhere`;
}
