/**
 * The life of one core thread: one loop that accepts connections, reads and answers requests of the workers of all
 * tenants, and sleeps in the kernel when there is nothing to do. Nothing here waits for anything else. Invariants: at
 * most so many strangers hold a descriptor, none for longer than its time, and those of one address never keep out
 * others; what one connection does wrong ends that connection only.
 */
import { TributaryError } from '../../base/index.ts';
import type { Kernels, OwnRules } from '../../kernels/index.ts';
import {
  AcceptPause,
  addressText,
  connectionToEvict,
  decodeAddress,
  ECONNABORTED,
  EINTR,
  errorName,
  FaultLog,
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
import type { TenantCensus } from '../wire/administration.ts';
import type { Hello, Proof, Welcome } from '../wire/messages.ts';
import { ConnectionTable } from './connection-table.ts';
import { FairTurns } from './fair-turns.ts';
import type { Office, OfficeNews, Service, SpaceRange } from './office.ts';
import { faultOf, packedForOthers, tooManyAdministrators, tooManyConnections } from './refusals.ts';
import { Session } from './session.ts';
import { stallOf } from './stalls.ts';
import type { Stallable } from './stalls.ts';
import { Stranger } from './stranger.ts';
import type { Doorkeeper } from './stranger.ts';
import { Tenant } from './tenant.ts';

export interface CoreOptions {
  /** Which core of its server it is. */
  readonly index: number;
  /** The processor to stay on; undefined: wherever the system puts it. */
  readonly processor: number | undefined;
  /** Sockets, one for each address, with the ports of all cores there. */
  readonly listening: readonly { readonly fd: number; readonly ports: readonly number[] }[];
  /** Rung by the office when it has said something. */
  readonly doorbell: number;
  /** Where it notes its connections. */
  readonly descriptors: SpaceRange;
  /** Sent to every worker that is admitted. */
  readonly welcome: Pick<Welcome, 'run' | 'beacon'>;
  /** How long a connection may take to authenticate, in milliseconds. */
  readonly handshakeTimeoutMs: number;
  /** How long a member may send nothing in the middle of a message, in milliseconds. */
  readonly stallTimeoutMs: number;
  /**
   * What administrators must know; undefined: nobody administrates this server over the network.
   */
  readonly administratorKey: string | undefined;
  /** Connections that may have not authenticated at a time. */
  readonly maxStrangers: number;
  /** Connections come through a TLS tunnel, which says first who they are. */
  readonly isTunnelled: boolean;
  /** Of users, by name. */
  readonly rules?: OwnRules | undefined;
}

interface Connection extends Stallable {
  /** The listening socket by which it came. */
  readonly door: number;
  /** Among those that the kernel is asked about. */
  place: number;
  /** What the kernel has found in this turn. */
  found: number;
  remote: string;
  /** Where it comes from; behind a tunnel not known before its first bytes. */
  host: string;
  stranger: Stranger | undefined;
  session: Session | undefined;
  /** Its tenant waits for its next turn, so the kernel was not asked about it. */
  isHeldOff: boolean;
}

/** Longest sleep, so that a thread that is to be ended never hangs in the kernel. */
const MAX_SLEEP_MS = 500;
/** Of the strangers that there may be: of those of one address, the newest is heard before others replace it. */
const ACCEPTS_SHARE = 1 / 4;
/** Connections that are taken in a turn, at all addresses together; then those that are there are served. */
const ACCEPTS_A_TURN = 4;
/** Administrators whose requests are carried out at a time. */
const MAX_ADMINISTRATORS = 8;
const EVICTION_LOG_INTERVAL_MS = 60_000;

export class CoreLoop implements Doorkeeper, OfficeNews {
  readonly #options: CoreOptions;
  readonly #office: Office;
  readonly #host: Host;
  readonly #kernels: Kernels;
  readonly #resources: StreamResources;
  readonly #poll: PollSet;
  /** Entries of the poll set that are no connections: the doorbell and the listening sockets. */
  readonly #firstPlace: number;
  readonly #tenants = new Map<string, Tenant>();
  /** Tenants whose service has ended, until their connections are closed. */
  readonly #ending: Tenant[] = [];
  /** What unknown namespaces are checked against. */
  readonly #nobody: string;
  readonly #remote = new Uint8Array(MAX_ADDRESS_BYTES);
  /** Of the listening socket, when there are no descriptors. */
  readonly #pause: AcceptPause;
  readonly #faults: FaultLog;
  readonly #table: ConnectionTable;
  readonly #turns: FairTurns;
  /** Answers of the office, and what goes on later, that await their tenant's turn. */
  readonly #answers = new Map<Tenant, (() => void)[]>();
  readonly #connections = new Map<MessageStream, Connection>();
  /** By their places. */
  readonly #placed: Connection[] = [];
  readonly #strangers = new Set<Connection>();
  /**
   * They have proved themselves, so they make room for nobody; their time is limited all the same.
   */
  readonly #administrators = new Set<Connection>();
  /** All that have something to do or to wait for. Others cost nothing: the kernel says when they have. */
  readonly #watched = new Set<Connection>();
  /** Since when the next message of the office is taken over. */
  #listensSinceMs = 0;
  #closing = false;
  #evictedLoggedAtMs = -Infinity;
  /** Of the listening sockets, the one by which somebody came last. */
  #lastDoor = -1;

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
    this.#faults = new FaultLog((line) => office.log(line));
    this.#poll.add(options.doorbell, POLLIN);
    for (const { fd } of options.listening) this.#poll.add(fd, POLLIN);
    this.#firstPlace = 1 + options.listening.length;
  }

  run(): void {
    this.#pin();
    do this.sleep();
    while (this.act());
  }

  #pin(): void {
    const { processor, index } = this.#options;
    const result = processor === undefined ? 0 : this.#host.libc.pinThread(processor);
    if (result >= 0) return;
    const why = errorName(result);
    this.#office.log(
      `core ${index} could not be pinned to processor ${processor} (${why}) and runs anywhere`,
    );
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
    for (const connection of [...this.#connections.values()]) this.#close(connection);
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
        (go) => this.answer(service.serial, go),
        this.#turns.isOver,
        this.#options.rules,
      ),
    );
  }

  endService(serial: number): void {
    const tenant = [...this.#tenants.values()].find(({ service }) => service.serial === serial);
    if (tenant === undefined) return this.#office.released(serial);
    this.#tenants.delete(tenant.service.namespace);
    this.#ending.push(tenant);
    for (const { session, stream } of this.#connections.values()) {
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
    const nowMs = this.#host.clock.nowMs();
    // Taking over a long answer takes time, too.
    if (tenant) this.#turns.charge(tenant, nowMs - this.#listensSinceMs);
    this.#listensSinceMs = nowMs;
    if (tenant === undefined) return take();
    const waiting = this.#answers.get(tenant);
    if (waiting) waiting.push(take);
    else this.#answers.set(tenant, [take]);
  }

  #takeAnswers(tenant: Tenant, mayGoOn: () => boolean): void {
    const waiting = this.#answers.get(tenant) ?? [];
    do waiting.shift()?.();
    while (waiting.length > 0 && !tenant.work.isBusy && mayGoOn());
    if (waiting.length === 0) this.#answers.delete(tenant);
  }

  /** More of what it has begun; what else has come for it is next. */
  #goOnWith(tenant: Tenant, mayGoOn: () => boolean): void {
    if (tenant.work.isBusy) tenant.work.goOn();
    else this.#takeAnswers(tenant, mayGoOn);
  }

  isBusy(namespace: string): boolean {
    return this.#tenants.get(namespace)?.work.isBusy ?? false;
  }

  nonceOf(namespace: string): string {
    return this.#tenants.get(namespace)?.service.nonce ?? this.#nobody;
  }

  get namespaces(): readonly string[] {
    return [...this.#tenants.keys()];
  }

  census(): readonly TenantCensus[] {
    return [...this.#tenants.values()].map(({ census }) => census);
  }

  get administratorKey(): string | undefined {
    return this.#options.administratorKey;
  }

  administrate(...[request, stream, take, fail]: Parameters<Doorkeeper['administrate']>): void {
    if (this.#administrators.size >= MAX_ADMINISTRATORS)
      return fail(tooManyAdministrators(MAX_ADMINISTRATORS));
    const connection = this.#connections.get(stream)!;
    this.#strangers.delete(connection);
    this.#administrators.add(connection);
    this.#office.administrate(request, take, fail);
  }

  admit({ namespace }: Hello, proof: Proof, stream: MessageStream): Omit<Welcome, 'proof'> {
    const tenant = this.#tenants.get(namespace)!;
    const { worker, incarnation, settings } = proof;
    const own = [...this.#connections.values()].filter(({ session }) => session?.tenant === tenant);
    if (own.length >= tenant.service.maxConnections) throw tooManyConnections(namespace, own.length);
    const replaced = tenant.incarnationOf(worker);
    tenant.enter(worker, incarnation, settings);
    const isHere = own.some(({ session }) => session!.worker === worker && session!.incarnation === replaced);
    // If its connection is still there, its memory is given back when that is closed.
    if (replaced !== undefined && replaced !== incarnation && !isHere) tenant.forget(worker, replaced);
    for (const { session, stream: earlier } of own) {
      if (session!.worker !== worker) continue;
      // Its process was started anew, or its connection broke without a word.
      session!.isReplaced = true;
      earlier.ended ??= 'closed';
    }
    const office = this.#office.of(tenant.service.serial);
    const { isOver } = this.#turns;
    const session = new Session(tenant, { worker, incarnation }, stream, this.#resources, office, isOver);
    const connection = this.#connections.get(stream)!;
    this.#strangers.delete(connection);
    connection.session = session;
    connection.stranger = undefined;
    stream.user = session;
    stream.limits = MEMBER_LIMITS;
    stream.account = tenant.limits;
    const { welcome, listening } = this.#options;
    const addresses = listening.map(({ ports }) => ports);
    return { ...welcome, ports: addresses[connection.door]!, addresses };
  }

  #sleep(): void {
    const nowMs = this.#host.clock.nowMs();
    let sleepMs = MAX_SLEEP_MS;
    for (const tenant of this.#tenants.values()) sleepMs = Math.min(sleepMs, tenant.lookAfter(nowMs));
    this.#faults.look(nowMs);
    const pauseMs = this.#pause.waitMs(nowMs);
    if (pauseMs > 0) sleepMs = Math.min(sleepMs, pauseMs);
    this.#poll.set(0, this.#options.doorbell, POLLIN);
    for (const [i, { fd }] of this.#options.listening.entries())
      this.#poll.set(1 + i, pauseMs > 0 ? NOTHING : fd, POLLIN);
    const waits = new Map<object, number>();
    const waitOf = (group: object): number => {
      const known = waits.get(group) ?? this.#turns.waitMs(group);
      waits.set(group, known);
      return known;
    };
    for (const connection of this.#watched) {
      const { stream, session } = connection;
      // What it asks next waits until it has taken what it asked for, and until its tenant may be served.
      const user = session ?? connection.stranger;
      const isPaused = user?.isPaused ?? false;
      const waitMs = waitOf(this.#groupOf(connection));
      const wanted = (isPaused ? 0 : POLLIN) | (stream.hasUnsent ? POLLOUT : 0);
      this.#poll.set(this.#firstPlace + connection.place, stream.fd, waitMs > 0 ? 0 : wanted);
      connection.isHeldOff = waitMs > 0;
      if (waitMs > 0) sleepMs = Math.min(sleepMs, waitMs);
      else if (user?.hasWork || (stream.isInterrupted && !isPaused)) sleepMs = 0;
      else if (session && wanted === POLLIN && !stream.isInMessage && stream.ended === undefined)
        this.#watched.delete(connection);
    }
    for (const tenant of this.#tenants.values()) {
      const isDue = tenant.journal.isDue || tenant.work.isBusy || this.#answers.has(tenant);
      if (isDue) sleepMs = Math.min(sleepMs, waitOf(tenant));
    }
    this.#poll.wait(sleepMs);
  }

  #act(): void {
    const mayGoOn = () => !this.#turns.isOver();
    const itself = (tenant: Tenant): object => tenant;
    const nowMs = this.#host.clock.nowMs();
    for (const index of this.#poll.ready()) {
      const connection = this.#placed[index - this.#firstPlace];
      if (connection === undefined) continue;
      connection.found = this.#poll.found(index);
      this.#watched.add(connection);
    }
    const ready = [...this.#watched].filter((connection) => {
      const { stream, session, found } = connection;
      connection.found = 0;
      const user = session ?? connection.stranger;
      if (user?.hasWork) return true;
      const isReady = !user?.isPaused && (stream.isInterrupted || (found & ~POLLOUT) !== 0);
      if (session && !connection.isHeldOff) {
        const isTaking = (found & POLLOUT) !== 0;
        const turn = { nowMs, isReady, isTaking, stallTimeoutMs: this.#options.stallTimeoutMs };
        const stall = stallOf(connection, session, turn);
        if (stall) stream.ended ??= stall;
      }
      return isReady;
    });
    this.#turns.serve(ready, this.#groupOf, (connection) => this.#listenTo(connection));
    const busy = [...this.#tenants.values()].filter(({ work }) => work.isBusy);
    const begun = [...new Set([...busy, ...this.#answers.keys()])];
    this.#turns.serve(begun, itself, (tenant) => this.#goOnWith(tenant, mayGoOn));
    // Answers wait for the next turn: whoever asked while a long one was taken over is heard of before.
    if (this.#poll.found(0) !== 0) {
      this.#host.libc.hush(this.#options.doorbell);
      this.#listensSinceMs = this.#host.clock.nowMs();
      this.#office.listen(this);
    }
    for (const { stranger, stream } of [...this.#strangers, ...this.#administrators]) {
      if (stranger && nowMs > stranger.deadlineMs)
        stream.ended ??= new ProtocolFault('said too little in time');
    }
    this.#acceptSome(nowMs);
    // One flush for all requests of this turn; only then are they acknowledged. A disk's time is the tenant's time.
    const due = [...this.#tenants.values()].filter(({ journal }) => journal.isDue);
    if (this.#closing) for (const { journal } of due) journal.flush();
    else this.#turns.serve(due, itself, ({ journal }) => journal.flush());
    for (const { journal } of this.#ending) journal.flush();
    // A request of one may have completed the step of all.
    const unsent = [...this.#watched].filter(({ stream }) => stream.hasUnsent);
    this.#turns.serve(unsent, this.#groupOf, ({ stream }) => void stream.write(mayGoOn));
    this.#clear();
    for (let tenant = this.#ending[0]; tenant; tenant = this.#ending[0]) this.#release(tenant);
  }

  /** Its connections are closed, so nothing can use its memory once it is closed itself. */
  #release(tenant: Tenant): void {
    try {
      tenant.work.close();
      // Once each: what goes on later is given up by `close`.
      const waiting = this.#answers.get(tenant)?.splice(0) ?? [];
      for (const take of waiting) take();
      tenant.close();
    } finally {
      this.#ending.shift();
      this.#answers.delete(tenant);
      this.#office.released(tenant.service.serial);
    }
  }

  /** Whose time is used; that of all strangers together is one tenant's. */
  readonly #groupOf = ({ session }: Connection): object => session?.tenant ?? this;

  #listenTo(connection: Connection): void {
    const { stream, remote, session } = connection;
    try {
      // A stranger becomes a session on the way.
      const userOf = () => connection.session ?? connection.stranger;
      userOf()?.goOn();
      const mayGoOn = () => !this.#turns.isOver() && !userOf()?.isPaused;
      if (!userOf()?.isPaused) stream.read(mayGoOn);
    } catch (error) {
      // A fault of ours must not end the thread, on which other tenants depend.
      const text = error instanceof TributaryError ? error.message : String((error as Error).stack ?? error);
      this.#sayFault(connection, `closed ${remote}${session ? ` (worker ${session.worker})` : ''}: ${text}`);
      if (error instanceof TributaryError) stream.send({ kind: 'refused', error: packedForOthers(error) });
      stream.ended ??= 'closed';
    }
  }

  /** From the address after the one that was last on, so that each has its turn. The kernel keeps the others. */
  #acceptSome(nowMs: number): void {
    const { listening, maxStrangers } = this.#options;
    const doors = listening.map((_, i) => (this.#lastDoor + 1 + i) % listening.length);
    let left = Math.max(1, Math.min(ACCEPTS_A_TURN, Math.floor(maxStrangers * ACCEPTS_SHARE)));
    for (const door of doors) {
      if (left === 0 || this.#poll.found(1 + door) === 0) continue;
      left -= this.#accept(door, left, nowMs);
      this.#lastDoor = door;
    }
  }

  /** Returns how many have come, at most so many. */
  #accept(door: number, most: number, nowMs: number): number {
    const { listening, maxStrangers } = this.#options;
    const { libc } = this.#host;
    for (let i = 0; i < most; i++) {
      const fd = libc.accept(listening[door]!.fd);
      if (fd === -EINTR || fd === -ECONNABORTED) continue;
      if (fd < 0) {
        this.#pause.failed(fd, nowMs);
        return i;
      }
      this.#pause.succeeded();
      const connection = this.#greet(fd, door, nowMs);
      const strangers = [...this.#strangers, connection];
      if (strangers.length > maxStrangers || this.#table.isFull) {
        const evicted = connectionToEvict(strangers, ({ host }) => host);
        this.#evict(evicted, strangers, nowMs);
        if (evicted === connection) continue;
      }
      this.#add(connection);
    }
    return most;
  }

  #add(connection: Connection): void {
    const { stream } = connection;
    connection.place = this.#placed.push(connection) - 1;
    this.#poll.add(stream.fd, POLLIN);
    this.#table.add(stream.fd);
    this.#connections.set(stream, connection);
    this.#strangers.add(connection);
    this.#watched.add(connection);
    stream.onChange = () => this.#watched.add(connection);
  }

  #greet(fd: number, door: number, nowMs: number): Connection {
    const { handshakeTimeoutMs, isTunnelled } = this.#options;
    const { libc } = this.#host;
    libc.remoteAddress(fd, this.#remote);
    const { host, port } = decodeAddress(this.#remote);
    if (!isTunnelled) tune(libc, fd, host);
    const stranger = new Stranger(this, this.#host.randomHex(32), nowMs + handshakeTimeoutMs);
    const stream = new MessageStream(fd, this.#resources, STRANGER_LIMITS, stranger);
    stranger.stream = stream;
    const connection: Connection = {
      ...{ stream, door, host, remote: addressText(host, port), stranger },
      ...{ session: undefined, stalledAtMs: undefined, isHeldOff: false, place: NOTHING, found: 0 },
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
    this.#close(evicted);
    if (nowMs - this.#evictedLoggedAtMs < EVICTION_LOG_INTERVAL_MS) return;
    this.#evictedLoggedAtMs = nowMs;
    const own = strangers.filter(({ host }) => host === evicted.host).length;
    this.#office.log(
      `closed ${evicted.remote}: ${strangers.length} connections have not authenticated, ${own} of its address; they make room for others`,
    );
  }

  #clear(): void {
    const gone = [...this.#watched].filter(({ stream }) => stream.ended !== undefined);
    for (const connection of gone) {
      const { stream, session, remote } = connection;
      session?.end();
      if (stream.ended instanceof ProtocolFault) {
        const who = session ? `worker ${session.worker} of '${session.tenant.service.namespace}' at ` : '';
        this.#sayFault(connection, `closed ${who}${remote}: it ${stream.ended.message}`);
        if (session) {
          const error = faultOf(`worker ${session.worker}`, stream.ended);
          stream.send({ kind: 'closed', error: packedForOthers(error) });
        }
      }
      stream.farewell();
      this.#close(connection);
    }
    // A process may have had several of these connections: its memory is used until the last is closed.
    for (const { session } of gone) if (session) this.#leave(session);
  }

  #sayFault({ host }: Connection, line: string): void {
    this.#faults.say(host, line, this.#host.clock.nowMs());
  }

  #leave({ tenant, worker, incarnation, isReplaced, hasLeft }: Session): void {
    if (!isReplaced) return hasLeft ? tenant.forget(worker, incarnation) : tenant.lose(worker);
    // A process that only connected again keeps its memory.
    if (tenant.incarnationOf(worker) !== incarnation) tenant.forget(worker, incarnation);
  }

  #close(connection: Connection): void {
    const { stream, place } = connection;
    stream.onChange = undefined;
    if (this.#connections.delete(stream)) {
      this.#poll.remove(this.#firstPlace + place);
      const last = this.#placed.pop()!;
      if (last !== connection) this.#placed[(last.place = place)] = last;
    }
    this.#strangers.delete(connection);
    this.#administrators.delete(connection);
    this.#watched.delete(connection);
    this.#table.remove(stream.fd);
    stream.close();
  }
}
