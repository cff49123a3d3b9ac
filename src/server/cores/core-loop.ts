/**
 * The life of one core thread: one loop that accepts connections, reads and answers requests of the workers of all
 * tenants, and sleeps in the kernel when there is nothing to do. Nothing here waits for anything else. Invariants: at
 * most so many strangers hold a descriptor, none for longer than its time, and those of one address never keep out
 * others; what one connection does wrong ends that connection only.
 */
import { PeerError, TributaryError } from '../../base/index.ts';
import type { Kernels } from '../../kernels/index.ts';
import {
  AcceptPause,
  addressText,
  connectionToEvict,
  decodeAddress,
  ECONNABORTED,
  EINTR,
  hostOf,
  MAX_ADDRESS_BYTES,
  NOTHING,
  POLLIN,
  POLLOUT,
  PollSet,
  readTunnelRecord,
  tune,
  TUNNEL_RECORD_BYTES,
} from '../../sockets/index.ts';
import type { Host } from '../../sockets/index.ts';
import { MEMBER_LIMITS, ProtocolFault, STRANGER_LIMITS } from '../wire/frame.ts';
import { MessageStream, StreamResources } from '../wire/message-stream.ts';
import type { Hello, Proof, Welcome } from '../wire/messages.ts';
import { ConnectionTable, MAX_CONNECTIONS } from './connection-table.ts';
import { FairTurns } from './fair-turns.ts';
import type { Office, OfficeNews, Service, SpaceRange } from './office.ts';
import { faultOf, packedForOthers } from './refusals.ts';
import { Session } from './session.ts';
import { Stranger } from './stranger.ts';
import type { Doorkeeper } from './stranger.ts';
import { Tenant } from './tenant.ts';

export interface CoreOptions {
  /** Which core of its server it is. */
  readonly index: number;
  /** The processor to stay on; undefined: wherever the system puts it. */
  readonly processor: number | undefined;
  readonly listeningFd: number;
  /** Rung by the office when it has said something. */
  readonly doorbell: number;
  /** Where it notes its connections. */
  readonly descriptors: SpaceRange;
  /** What every worker is told. */
  readonly welcome: Omit<Welcome, 'proof'>;
  /** How long a connection may take to prove itself, in milliseconds. */
  readonly handshakeTimeoutMs: number;
  /** How long a member may send nothing in the middle of a message, in milliseconds. */
  readonly stallTimeoutMs: number;
  /** Connections that may be proving themselves at a time. */
  readonly maxStrangers: number;
  /** Connections come through a TLS tunnel, which says first who they are. */
  readonly isTunnelled: boolean;
}

interface Connection {
  readonly stream: MessageStream;
  remote: string;
  /** Where it comes from; behind a tunnel not known before its first bytes. */
  host: string;
  stranger: Stranger | undefined;
  session: Session | undefined;
  /**
   * Since when the other side has neither gone on with its message nor taken answers; undefined: it is not waited
   * for.
   */
  stalledAtMs: number | undefined;
  /** Its tenant waits for its next turn, so the kernel was not asked about it. */
  isHeldOff: boolean;
}

/** Of the time in the middle of a message: how long answers may not be taken while their tenant waits for that. */
const DEAF_SHARE = 1 / 6;
/** Longest sleep, so that a thread that is to be ended never hangs in the kernel. */
const MAX_SLEEP_MS = 500;
/**
 * Of the strangers that there may be: of those that come from one address, the newest is heard before others replace
 * it.
 */
const ACCEPTS_SHARE = 1 / 4;
const EVICTION_LOG_INTERVAL_MS = 60_000;
/** Of all connections that a core can have, so that others get in. */
const MAX_TENANT_CONNECTIONS = MAX_CONNECTIONS / 4;

export class CoreLoop implements Doorkeeper, OfficeNews {
  readonly #options: CoreOptions;
  readonly #office: Office;
  readonly #host: Host;
  readonly #kernels: Kernels;
  readonly #resources: StreamResources;
  readonly #poll: PollSet;
  readonly #tenants = new Map<string, Tenant>();
  /** Tenants whose service has ended, until their connections are closed. */
  readonly #ending: Tenant[] = [];
  /** What unknown namespaces are checked against. */
  readonly #nobody: string;
  readonly #remote = new Uint8Array(MAX_ADDRESS_BYTES);
  /** Of the listening socket, when there are no descriptors. */
  readonly #pause: AcceptPause;
  readonly #table: ConnectionTable;
  readonly #turns: FairTurns;
  /** Answers of the office that await their tenant's turn. */
  readonly #answers = new Map<Tenant, (() => void)[]>();
  #connections: Connection[] = [];
  #closing = false;
  #evictedLoggedAtMs = -Infinity;

  constructor(kernels: Kernels, office: Office, options: CoreOptions, host: Host) {
    this.#options = options;
    this.#office = office;
    this.#host = host;
    this.#nobody = host.randomHex(32);
    this.#kernels = kernels;
    this.#turns = new FairTurns(host.clock);
    this.#table = new ConnectionTable(kernels.space, options.descriptors);
    this.#resources = new StreamResources(kernels.space, host.libc);
    this.#poll = new PollSet(kernels.space, host.libc);
    this.#pause = new AcceptPause((line) => office.log(line));
  }

  run(): void {
    if (this.#options.processor !== undefined) this.#host.libc.pinThread(this.#options.processor);
    do this.sleep();
    while (this.act());
  }

  /** Sleeps until there is something to do. */
  sleep(): void {
    this.#orLog(() => this.#sleep());
  }

  /** Does what there was to do when it woke; false once it is closed, and everything is given back. */
  act(): boolean {
    this.#orLog(() => this.#act());
    if (this.#closing) this.#end();
    return !this.#closing;
  }

  /** A fault of ours is never because of one connection alone; other tenants must not suffer from it. */
  #orLog(step: () => void): void {
    try {
      step();
    } catch (error) {
      this.#office.log(`a core failed and goes on: ${String((error as Error).stack ?? error)}`);
    }
  }

  #end(): void {
    for (const { stream } of this.#connections) this.#close(stream);
    for (const tenant of [...this.#tenants.values(), ...this.#ending]) tenant.close();
    this.#poll.close();
    this.#resources.close();
  }

  service(service: Service): void {
    const earlier = this.#tenants.get(service.namespace);
    if (earlier) this.endService(earlier.service.serial);
    this.#tenants.set(
      service.namespace,
      new Tenant(
        service,
        this.#kernels,
        this.#office.of(service.serial),
        this.#resources.bytes,
        this.#options.index,
        this.#host,
        this.#turns.isOver,
      ),
    );
  }

  endService(serial: number): void {
    const tenant = [...this.#tenants.values()].find(({ service }) => service.serial === serial);
    if (tenant === undefined) return this.#office.released(serial);
    this.#tenants.delete(tenant.service.namespace);
    this.#ending.push(tenant);
    for (const { session, stream } of this.#connections) {
      if (session?.tenant !== tenant) continue;
      session.isReplaced = true;
      stream.ended ??= 'closed';
    }
  }

  joinCheckpoint(serial: number, step: number): void {
    const tenant = [...this.#tenants.values()].find(({ service }) => service.serial === serial);
    // In its place among the answers, since one of them may say that an earlier attempt has failed.
    if (tenant) this.answer(serial, () => tenant.joinCheckpoint(step));
  }

  close(): void {
    this.#closing = true;
  }

  answer(serial: number, take: () => void): void {
    const all = [...this.#tenants.values(), ...this.#ending];
    const tenant = all.find(({ service }) => service.serial === serial);
    if (tenant === undefined) return take();
    const waiting = this.#answers.get(tenant);
    if (waiting) waiting.push(take);
    else this.#answers.set(tenant, [take]);
  }

  #takeAnswers(tenant: Tenant, mayGoOn: () => boolean): void {
    const waiting = this.#answers.get(tenant) ?? [];
    do waiting.shift()?.();
    while (waiting.length > 0 && mayGoOn());
    if (waiting.length === 0) this.#answers.delete(tenant);
  }

  nonceOf(namespace: string): string {
    return this.#tenants.get(namespace)?.service.nonce ?? this.#nobody;
  }

  admit({ namespace }: Hello, proof: Proof, stream: MessageStream): Omit<Welcome, 'proof'> {
    const tenant = this.#tenants.get(namespace)!;
    const { worker, incarnation, settings } = proof;
    const own = this.#connections.filter(({ session }) => session?.tenant === tenant);
    if (own.length >= MAX_TENANT_CONNECTIONS) throw tooMany(namespace, own.length);
    const replaced = tenant.incarnationOf(worker);
    tenant.enter(worker, incarnation, settings);
    const isHere = own.some(({ session }) => session!.worker === worker && session!.incarnation === replaced);
    // If its connection is still there, its memory is given back when that is closed.
    if (replaced !== undefined && replaced !== incarnation && !isHere) tenant.forget(worker, replaced);
    for (const { session, stream: earlier } of this.#connections) {
      if (session?.tenant !== tenant || session.worker !== worker) continue;
      // Its process was started anew, or its connection broke without a word.
      session.isReplaced = true;
      earlier.ended ??= 'closed';
    }
    const office = this.#office.of(tenant.service.serial);
    const { isOver } = this.#turns;
    const session = new Session(tenant, { worker, incarnation }, stream, this.#resources, office, isOver);
    const connection = this.#connections.find((one) => one.stream === stream)!;
    connection.session = session;
    connection.stranger = undefined;
    stream.user = session;
    stream.limits = MEMBER_LIMITS;
    stream.account = tenant.limits;
    return this.#options.welcome;
  }

  #sleep(): void {
    const { listeningFd, doorbell } = this.#options;
    const nowMs = this.#host.clock.nowMs();
    let sleepMs = MAX_SLEEP_MS;
    for (const tenant of this.#tenants.values()) sleepMs = Math.min(sleepMs, tenant.lookAfter(nowMs));
    const pauseMs = this.#pause.waitMs(nowMs);
    if (pauseMs > 0) sleepMs = Math.min(sleepMs, pauseMs);
    this.#poll.clear();
    this.#poll.add(doorbell, POLLIN);
    this.#poll.add(pauseMs > 0 ? NOTHING : listeningFd, POLLIN);
    const waits = new Map<object, number>();
    const waitOf = (group: object): number => {
      const known = waits.get(group) ?? this.#turns.waitMs(group);
      waits.set(group, known);
      return known;
    };
    for (const connection of this.#connections) {
      const { stream, session } = connection;
      // What it asks next waits until it has taken what it asked for, and until its tenant may be served.
      const isPaused = session?.isPaused ?? false;
      const waitMs = waitOf(this.#groupOf(connection));
      const wanted = (isPaused ? 0 : POLLIN) | (stream.hasUnsent ? POLLOUT : 0);
      this.#poll.add(stream.fd, waitMs > 0 ? 0 : wanted);
      connection.isHeldOff = waitMs > 0;
      if (waitMs > 0) sleepMs = Math.min(sleepMs, waitMs);
      else if (session?.hasWork || (stream.isInterrupted && !isPaused)) sleepMs = 0;
    }
    for (const tenant of this.#tenants.values()) {
      const { journal, work } = tenant;
      if (journal.isDue || work.isBusy || this.#answers.has(tenant))
        sleepMs = Math.min(sleepMs, waitOf(tenant));
    }
    this.#poll.wait(sleepMs);
  }

  #act(): void {
    if (this.#poll.found(0) !== 0) {
      this.#host.libc.hush(this.#options.doorbell);
      this.#office.listen(this);
    }
    const mayGoOn = () => !this.#turns.isOver();
    const itself = (tenant: Tenant): object => tenant;
    const busy = [...this.#tenants.values()].filter(({ work }) => work.isBusy);
    this.#turns.serve(busy, itself, ({ work }) => work.goOn());
    const answered = [...this.#answers.keys()].filter(({ work }) => !work.isBusy);
    this.#turns.serve(answered, itself, (tenant) =>
      this.#takeAnswers(tenant, () => mayGoOn() && !tenant.work.isBusy),
    );
    const nowMs = this.#host.clock.nowMs();
    const ready = this.#connections.filter((connection, i) => {
      const { stream, session } = connection;
      const found = this.#poll.found(i + 2);
      if (session?.hasWork) return true;
      const isReady = !session?.isPaused && (stream.isInterrupted || (found & ~POLLOUT) !== 0);
      if (session && !connection.isHeldOff)
        this.#watch(connection, session, { nowMs, isReady, isTaking: (found & POLLOUT) !== 0 });
      return isReady;
    });
    this.#turns.serve(ready, this.#groupOf, (connection) => this.#listenTo(connection));
    for (const { stranger, stream } of this.#connections) {
      if (stranger && nowMs > stranger.deadlineMs)
        stream.ended ??= new ProtocolFault('said too little in time');
    }
    if (this.#poll.found(1) !== 0) this.#accept(nowMs);
    // One flush for all requests of this turn; only then are they acknowledged. A disk's time is the tenant's time.
    const due = [...this.#tenants.values()].filter(({ journal }) => journal.isDue);
    if (this.#closing) for (const { journal } of due) journal.flush();
    else this.#turns.serve(due, itself, ({ journal }) => journal.flush());
    for (const { journal } of this.#ending) journal.flush();
    // A request of one may have completed the step of all.
    const unsent = this.#connections.filter(({ stream }) => stream.hasUnsent);
    this.#turns.serve(unsent, this.#groupOf, ({ stream }) => void stream.write(mayGoOn));
    if (this.#connections.some(({ stream }) => stream.ended !== undefined)) this.#clear();
    for (let tenant = this.#ending[0]; tenant; tenant = this.#ending[0]) this.#release(tenant);
  }

  /**
   * Ends a connection whose other side keeps its tenant waiting: in the middle of a message, or by not taking
   * answers.
   */
  #watch(
    connection: Connection,
    { isPaused, tenant }: Session,
    {
      nowMs,
      isReady,
      isTaking,
    }: { readonly nowMs: number; readonly isReady: boolean; readonly isTaking: boolean },
  ): void {
    const { stream } = connection;
    const isSilent = !isPaused && !isReady && stream.isInMessage;
    const isDeaf = tenant.limits.isOverUnsent && stream.hasUnsent && !isTaking;
    if (!isSilent && !isDeaf) return void (connection.stalledAtMs = undefined);
    connection.stalledAtMs ??= nowMs;
    const stalledMs = nowMs - connection.stalledAtMs;
    const { stallTimeoutMs } = this.#options;
    const fault = (what: string) =>
      new ProtocolFault(what, 'let its event loop run more often, or raise stallTimeoutMs of the server');
    if (isDeaf && stalledMs >= stallTimeoutMs * DEAF_SHARE)
      stream.ended ??= fault(`did not read its answers for ${Math.round(stalledMs)} ms`);
    else if (stalledMs >= stallTimeoutMs)
      stream.ended ??= fault(`sent nothing for ${Math.round(stalledMs)} ms in the middle of a message`);
  }

  /** Its connections are closed, so nothing can use its memory once it is closed itself. */
  #release(tenant: Tenant): void {
    this.#ending.shift();
    try {
      this.#takeAnswers(tenant, () => true);
      tenant.close();
    } finally {
      this.#office.released(tenant.service.serial);
    }
  }

  /** Whose time is used; that of all strangers together is one tenant's. */
  readonly #groupOf = ({ session }: Connection): object => session?.tenant ?? this;

  #listenTo(connection: Connection): void {
    const { stream, remote, session } = connection;
    try {
      session?.goOn();
      // A stranger becomes a session on the way.
      const mayGoOn = () => !this.#turns.isOver() && !connection.session?.isPaused;
      if (!session?.isPaused) stream.read(mayGoOn);
    } catch (error) {
      // A fault of ours must not end the thread, on which other tenants depend.
      const text = error instanceof TributaryError ? error.message : String((error as Error).stack ?? error);
      this.#office.log(`closed ${remote}${session ? ` (worker ${session.worker})` : ''}: ${text}`);
      if (error instanceof TributaryError) stream.send({ kind: 'refused', error: packedForOthers(error) });
      stream.ended ??= 'closed';
    }
  }

  #accept(nowMs: number): void {
    const { listeningFd, maxStrangers } = this.#options;
    const { libc } = this.#host;
    for (let i = 0; i < Math.max(1, maxStrangers * ACCEPTS_SHARE); i++) {
      const fd = libc.accept(listeningFd);
      if (fd === -EINTR || fd === -ECONNABORTED) continue;
      if (fd < 0) return void this.#pause.failed(fd, nowMs);
      this.#pause.succeeded();
      const connection = this.#greet(fd, nowMs);
      const strangers = [...this.#connections.filter(({ stranger }) => stranger), connection];
      if (strangers.length > maxStrangers || this.#table.isFull) {
        const evicted = connectionToEvict(strangers, ({ host }) => host);
        this.#evict(evicted, strangers, nowMs);
        if (evicted === connection) continue;
      }
      this.#table.add(fd);
      this.#connections.push(connection);
    }
  }

  #greet(fd: number, nowMs: number): Connection {
    const { handshakeTimeoutMs, isTunnelled } = this.#options;
    const { libc } = this.#host;
    libc.remoteAddress(fd, this.#remote);
    const { host, port } = decodeAddress(this.#remote);
    if (!isTunnelled) tune(libc, fd, host);
    const stranger = new Stranger(this, this.#host.randomHex(32), nowMs + handshakeTimeoutMs);
    const stream = new MessageStream(fd, this.#resources, STRANGER_LIMITS, stranger);
    stranger.stream = stream;
    const connection: Connection = {
      ...{ stream, host, remote: addressText(host, port), stranger },
      ...{ session: undefined, stalledAtMs: undefined, isHeldOff: false },
    };
    if (isTunnelled) {
      const take = (record: Uint8Array): void => {
        const { remote, channel } = readTunnelRecord(record);
        connection.remote = remote!;
        connection.host = hostOf(remote!);
        stranger.channel = channel;
      };
      stream.preface = { bytes: TUNNEL_RECORD_BYTES, take };
    }
    return connection;
  }

  /** Makes room for whoever came last, at once, since descriptors are few. */
  #evict(evicted: Connection, strangers: readonly Connection[], nowMs: number): void {
    this.#connections = this.#connections.filter((one) => one !== evicted);
    this.#close(evicted.stream);
    if (nowMs - this.#evictedLoggedAtMs < EVICTION_LOG_INTERVAL_MS) return;
    this.#evictedLoggedAtMs = nowMs;
    const own = strangers.filter(({ host }) => host === evicted.host).length;
    this.#office.log(
      `closed ${evicted.remote}: ${strangers.length} connections have not authenticated, ${own} of its address; they make room for others`,
    );
  }

  #clear(): void {
    const gone = this.#connections.filter(({ stream }) => stream.ended !== undefined);
    this.#connections = this.#connections.filter(({ stream }) => stream.ended === undefined);
    for (const { stream, session, remote } of gone) {
      session?.end();
      if (stream.ended instanceof ProtocolFault) {
        const who = session ? `worker ${session.worker} of '${session.tenant.service.namespace}' at ` : '';
        this.#office.log(`closed ${who}${remote}: it ${stream.ended.message}`);
        if (session) {
          const error = faultOf(`worker ${session.worker}`, stream.ended);
          stream.send({ kind: 'closed', error: packedForOthers(error) });
        }
      }
      stream.farewell();
      this.#close(stream);
    }
    // A process may have had several of these connections: its memory is used until the last is closed.
    for (const { session } of gone) if (session) this.#leave(session);
  }

  #leave({ tenant, worker, incarnation, isReplaced, hasLeft }: Session): void {
    if (!isReplaced) return hasLeft ? tenant.forget(worker, incarnation) : tenant.lose(worker);
    // A process that only connected again keeps its memory.
    if (tenant.incarnationOf(worker) !== incarnation) tenant.forget(worker, incarnation);
  }

  #close(stream: MessageStream): void {
    this.#table.remove(stream.fd);
    stream.close();
  }
}

function tooMany(namespace: string, connections: number): PeerError {
  return new PeerError(
    'REFUSED',
    `namespace '${namespace}' has ${connections} connections to this core, as many as one may; end workers that are not needed, or use more servers`,
    { namespace, connections },
  );
}
