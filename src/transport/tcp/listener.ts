/**
 * The side that is dialled: accepts connections, lets each prove that it belongs here, and refuses all others. It hands
 * over descriptors and never sees a frame. Invariants: at most `maxPendingHandshakes` connections that have not
 * authenticated hold a descriptor, none for longer than `handshakeTimeoutMs`, and those of one address never keep out
 * others; every refusal is counted, and some of each address in a minute are logged, never with the secret.
 */
import {
  AcceptPause,
  addressText,
  connectionToEvict,
  decodeAddress,
  EAGAIN,
  ECONNABORTED,
  EINTR,
  errorName,
  FaultLog,
  hostOf,
  MAX_ADDRESS_BYTES,
  readTunnelRecord,
  tune,
  TUNNEL_RECORD_BYTES,
} from '../../sockets/index.ts';
import type { Libc } from '../../sockets/index.ts';
import {
  CONFIRMATION,
  HELLO_BYTES,
  isProof,
  NONCE_BYTES,
  PROOF_BYTES,
  PROTOCOL_VERSION,
  prove,
  readHello,
  startsLikeHello,
  Status,
  writeAnswer,
} from './handshake.ts';
import type { Hello } from './handshake.ts';
import { MAX_CONNECTIONS_PER_PEER } from './options.ts';
import type { CheckedOptions } from './options.ts';

/** Why connections were refused, and how many. */
export interface Refused {
  /** Bytes of another protocol, half a handshake, or an end before it. */
  readonly garbage: number;
  readonly version: number;
  readonly secret: number;
  /** A member that is connected already, or has dialled again before it was. */
  readonly duplicate: number;
  /** A member that nobody told us of, or one that looks for somebody else. */
  readonly unknown: number;
  readonly timeout: number;
  /** Made room for others, as more than `maxPendingHandshakes` had not authenticated. */
  readonly tooMany: number;
}

/** What the transport says to a dialer that has proved to know the secret. */
export type Verdict = 'accept' | 'wait' | 'duplicate' | 'unknown';

export interface Doorkeeper {
  judge(hello: Hello): Verdict;
  /** The connection is now the transport's. */
  accepted(hello: Hello, fd: number): void;
}

interface Pending {
  readonly fd: number;
  remote: string;
  /** Where it comes from; behind a tunnel not known before its first bytes. */
  host: string;
  readonly deadline: number;
  readonly bytes: Uint8Array;
  filled: number;
  stage: 'tunnel' | 'hello' | 'proof' | MemberStage;
  hello: Hello | undefined;
  readonly nonce: Uint8Array;
  /** That of the TLS connection; undefined without TLS. */
  channel: string | undefined;
  /** Its caller has dialled again, and got the answer there. */
  isReplaced: boolean;
}

/**
 * Of those that have authenticated. 'parked': it waits until we are told of its member. 'answered': it has to say that it
 * has heard our proof; until then it may give up and dial again.
 */
type MemberStage = 'parked' | 'answered';

/** A flood is logged once in so many. */
const FLOOD_LOG_INTERVAL = 1000;

export class Listener {
  readonly fd: number;
  readonly #options: CheckedOptions;
  readonly #doorkeeper: Doorkeeper;
  readonly #refused = {
    garbage: 0,
    version: 0,
    secret: 0,
    duplicate: 0,
    unknown: 0,
    timeout: 0,
    tooMany: 0,
  };
  #pending: Pending[] = [];
  readonly #pause: AcceptPause;
  readonly #faults: FaultLog;
  readonly #address = new Uint8Array(MAX_ADDRESS_BYTES);

  constructor(fd: number, options: CheckedOptions, doorkeeper: Doorkeeper) {
    this.fd = fd;
    this.#options = options;
    this.#doorkeeper = doorkeeper;
    this.#pause = new AcceptPause(options.log);
    this.#faults = new FaultLog(options.log);
  }

  get refused(): Refused {
    return { ...this.#refused };
  }

  get pendingCount(): number {
    return this.#pending.length;
  }

  get #libc(): Libc {
    return this.#options.host.libc;
  }

  /** Whether callers are left alone for now, since there are no descriptors for them. */
  isPaused(now: number): boolean {
    return this.#pause.waitMs(now) > 0;
  }

  /** The descriptors of those from whom the next word is awaited. */
  get awaitedFds(): number[] {
    return this.#pending.filter(({ stage }) => stage !== 'parked').map(({ fd }) => fd);
  }

  /** Accepts and listens to what is there, without waiting. */
  step(now: number): void {
    this.#faults.look(now);
    if (this.#pending.length > 0) this.#pending = this.#pending.filter((one) => !this.#advance(one, now));
    if (this.isPaused(now)) return;
    // No more, so that each is heard at least once more before others of its address replace it.
    for (let i = 0; i < this.#options.maxPendingHandshakes; i++) {
      const fd = this.#libc.accept(this.fd);
      if (fd === -EINTR || fd === -ECONNABORTED) continue;
      if (fd < 0) return void this.#pause.failed(fd, now);
      this.#pause.succeeded();
      this.#accept(fd, now);
    }
  }

  close(): void {
    for (const { fd } of this.#pending) this.#libc.close(fd);
    this.#pending = [];
    this.#libc.close(this.fd);
  }

  #accept(fd: number, now: number): void {
    this.#libc.remoteAddress(fd, this.#address);
    const { host, port } = decodeAddress(this.#address);
    const remote = addressText(host, port);
    const isTunnelled = this.#options.tls !== undefined;
    if (!isTunnelled) tune(this.#libc, fd, host);
    const pending: Pending = {
      fd,
      remote,
      host,
      deadline: now + this.#options.handshakeTimeoutMs,
      bytes: new Uint8Array(TUNNEL_RECORD_BYTES),
      filled: 0,
      stage: isTunnelled ? 'tunnel' : 'hello',
      hello: undefined,
      nonce: Buffer.from(this.#options.host.randomHex(NONCE_BYTES), 'hex'),
      channel: undefined,
      isReplaced: false,
    };
    if (this.#advance(pending, now)) return;
    this.#pending.push(pending);
    const strangers = this.#pending.filter(isStranger);
    if (strangers.length > this.#options.maxPendingHandshakes) this.#evict(strangers);
  }

  #evict(strangers: readonly Pending[]): void {
    const evicted = connectionToEvict(strangers, ({ host }) => host);
    this.#pending = this.#pending.filter((one) => one !== evicted);
    this.#libc.close(evicted.fd);
    this.#refused.tooMany++;
    if (this.#refused.tooMany % FLOOD_LOG_INTERVAL !== 1) return;
    const own = strangers.filter(({ host }) => host === evicted.host).length;
    this.#options.log(
      `refused ${evicted.remote}: ${strangers.length} connections have not authenticated, ${own} of its address; they make room for others (${this.#refused.tooMany} refused so)`,
    );
  }

  /** True when the stranger is one no more: accepted or refused. */
  #advance(pending: Pending, now: number): boolean {
    for (;;) {
      if (pending.stage === 'parked') return this.#judge(pending, now);
      if (pending.isReplaced) return this.#refuse(pending, 'duplicate', 'its caller has dialled again');
      const wanted =
        pending.stage === 'hello'
          ? HELLO_BYTES
          : pending.stage === 'proof'
            ? PROOF_BYTES
            : pending.stage === 'answered'
              ? CONFIRMATION.length
              : TUNNEL_RECORD_BYTES;
      const got = this.#libc.receiveBytes(pending.fd, pending.bytes.subarray(pending.filled, wanted));
      if (got === -EAGAIN || got === -EINTR) {
        if (now < pending.deadline || !isStranger(pending)) return false;
        return this.#refuse(pending, 'timeout', 'it said too little in time');
      }
      if (got <= 0) {
        const how = got === 0 ? 'it ended' : errorName(got);
        const what = isStranger(pending) ? 'proved itself' : 'confirmed that it heard the answer';
        return this.#refuse(pending, 'garbage', `${how} before it had ${what}`);
      }
      pending.filled += got;
      if (pending.stage === 'hello' && !startsLikeHello(pending.bytes.subarray(0, pending.filled))) {
        return this.#refuse(pending, 'garbage', 'it speaks another protocol');
      }
      if (pending.filled < wanted) continue;
      pending.filled = 0;
      if (pending.stage === 'tunnel') {
        const { remote, channel } = readTunnelRecord(pending.bytes);
        pending.remote = remote!;
        pending.host = hostOf(remote!);
        pending.channel = channel;
        pending.stage = 'hello';
      } else if (pending.stage === 'hello') {
        if (this.#heardHello(pending)) return true;
      } else if (pending.stage === 'answered') {
        return this.#heardConfirmation(pending);
      } else if (this.#heardProof(pending)) {
        return true;
      }
    }
  }

  #heardHello(pending: Pending): boolean {
    const { version, hello } = readHello(pending.bytes)!;
    if (version !== PROTOCOL_VERSION) {
      const text = `it speaks version ${version} of the protocol, this process ${PROTOCOL_VERSION}`;
      return this.#refuse(pending, 'version', text, Status.VERSION);
    }
    if (hello.count < 1 || hello.count > MAX_CONNECTIONS_PER_PEER || hello.index >= hello.count) {
      return this.#refuse(pending, 'garbage', `it is connection ${hello.index} of ${hello.count}`);
    }
    pending.hello = hello;
    pending.stage = 'proof';
    return !this.#answer(pending, pending.nonce);
  }

  #heardProof(pending: Pending): boolean {
    const { hello, nonce, channel } = pending;
    const given = pending.bytes.subarray(0, PROOF_BYTES);
    if (!isProof(given, this.#options.key, 'caller', hello!, nonce, channel)) {
      return this.#refuse(pending, 'secret', 'it does not know the secret', Status.SECRET);
    }
    pending.stage = 'parked';
    return false;
  }

  /** A member that we have not been told of yet waits for it, until its time is up. */
  #judge(pending: Pending, now: number): boolean {
    const hello = pending.hello!;
    const verdict = this.#doorkeeper.judge(hello);
    if (verdict === 'wait' && now < pending.deadline) return false;
    if (verdict === 'duplicate') {
      return this.#refuse(
        pending,
        'duplicate',
        `member ${hello.member} is connected already`,
        Status.DUPLICATE,
      );
    }
    if (verdict !== 'accept') {
      const text =
        verdict === 'wait' ? `nobody told of member ${hello.member}` : `it looks for another process`;
      return this.#refuse(pending, 'unknown', text, Status.UNKNOWN);
    }
    const proof = prove(this.#options.key, 'listener', hello, pending.nonce, pending.channel);
    if (!this.#answer(pending, proof)) return true;
    const former = this.#pending.find(
      (one) =>
        one.stage === 'answered' && one.hello!.member === hello.member && one.hello!.index === hello.index,
    );
    if (former) former.isReplaced = true;
    pending.stage = 'answered';
    return false;
  }

  #heardConfirmation(pending: Pending): true {
    const hello = pending.hello!;
    if (pending.bytes[0] !== CONFIRMATION[0]) {
      return this.#refuse(pending, 'garbage', 'it did not confirm that it heard the answer');
    }
    if (this.#doorkeeper.judge(hello) !== 'accept') {
      return this.#refuse(pending, 'unknown', `member ${hello.member} is not waited for any more`);
    }
    this.#doorkeeper.accepted(hello, pending.fd);
    return true;
  }

  /**
   * False: the kernel did not take all of it, which it does of so few bytes, and the caller has to
   * dial again.
   */
  #answer(pending: Pending, body: Uint8Array): boolean {
    const answer = writeAnswer(Status.OK, body);
    const sent = this.#libc.sendBytes(pending.fd, answer);
    if (sent === answer.length) return true;
    const how = sent < 0 ? errorName(sent) : `${sent} of ${answer.length} bytes were taken`;
    return !this.#refuse(pending, 'garbage', `it cannot be answered: ${how}`);
  }

  #refuse(pending: Pending, why: keyof Refused, text: string, status?: Status): true {
    this.#refused[why]++;
    this.#faults.say(pending.host, `refused ${pending.remote}: ${text}`, this.#options.host.clock.nowMs());
    if (status !== undefined) this.#libc.sendBytes(pending.fd, writeAnswer(status));
    this.#libc.close(pending.fd);
    return true;
  }
}

function isStranger({ stage }: Pending): boolean {
  return stage !== 'parked' && stage !== 'answered';
}
