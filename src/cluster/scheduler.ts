/**
 * The rendezvous of a cluster: processes connect, prove that they know the secret, get their numbers and each other's
 * addresses, and hear of deaths. It moves no tensors; if it dies, groups that exist go on. What it decides is in
 * roster.ts; here are sockets and time. Invariant: at most `maxPending` connections that have not authenticated cost
 * anything, and those of one address never keep out others.
 * It needs its thread: run it where nothing blocks for long (not in a process that waits in collectives).
 */
import { EventEmitter } from 'node:events';
import { createServer } from 'node:net';
import type { AddressInfo, Server, Socket } from 'node:net';
import { UsageError } from '../base/index.ts';
import { AcceptPause, connectionToEvict, FaultLog, probeDescriptors } from '../sockets/index.ts';
import { Admission } from './admission.ts';
import { encodeFrame, ProtocolFault } from './frames.ts';
import { readMemberMessage } from './messages.ts';
import type { LeaveReason, MemberMessage, RefusalReason, SchedulerMessage } from './messages.ts';
import { Roster } from './roster.ts';
import type { Outcome } from './roster.ts';
import { SchedulerConnection, secureContext } from './scheduler-connection.ts';
import { completeOptions } from './scheduler-options.ts';
import type { CompleteOptions, SchedulerOptions } from './scheduler-options.ts';

/** Most bytes that somebody may leave unread who has not joined: a few answers are all that is sent. */
const MAX_STRANGER_BACKLOG_BYTES = 16 * 1024;
/** How long a refusal may take to be read. */
const REFUSAL_LINGER_MS = 1000;
const BEAT = encodeFrame({ kind: 'beat' } satisfies SchedulerMessage);

export interface SchedulerEvents {
  /** A process has come and waits: for the first group, or as a newcomer for a regroup. */
  joined: [event: { readonly title: string; readonly newcomer: boolean }];
  left: [event: { readonly member: number; readonly title: string; readonly reason: LeaveReason }];
  /** A group was formed: by the rendezvous, a regroup or a request. */
  formed: [event: { readonly group: number; readonly members: readonly number[] }];
  /** Of each address some in a minute, as in the log; `refused` of the scheduler counts them all. */
  refused: [event: { readonly remote: string; readonly reason: RefusalReason; readonly text: string }];
}

export class Scheduler extends EventEmitter<SchedulerEvents> {
  /** Where processes find it: 'host:port'. */
  readonly address: string;
  /** How many strangers were refused, by reason. */
  readonly refused: Readonly<Record<RefusalReason, number>>;
  readonly #refused: Record<RefusalReason, number>;
  readonly #options: CompleteOptions;
  readonly #roster: Roster;
  readonly #server: Server;
  readonly #context: ReturnType<typeof secureContext>;
  readonly #connections = new Map<number, SchedulerConnection>();
  /** Those in the handshake and those just refused, oldest first. */
  readonly #pending = new Set<SchedulerConnection>();
  readonly #outcomes: Outcome[] = [];
  readonly #timer: NodeJS.Timeout;
  #lastConnection = 0;
  #sweptAt = performance.now();
  /** Node drops connections without a word when there are no descriptors: only a log line is left. */
  readonly #pause: AcceptPause;
  readonly #faults: FaultLog;
  #performing = false;
  #closed = false;

  static async start(options: SchedulerOptions): Promise<Scheduler> {
    const complete = completeOptions(options);
    const context = secureContext(complete.tls);
    const server = await listen(complete);
    return new Scheduler(complete, server, context);
  }

  private constructor(options: CompleteOptions, server: Server, context: ReturnType<typeof secureContext>) {
    super();
    const { address, port, family } = server.address() as AddressInfo;
    this.address = family === 'IPv6' ? `[${address}]:${port}` : `${address}:${port}`;
    this.#refused = { secret: 0, version: 0, protocol: 0, silent: 0, busy: 0, rank: 0, full: 0, ended: 0 };
    this.refused = this.#refused;
    this.#options = options;
    this.#context = context;
    this.#roster = new Roster(options.size);
    this.#server = server;
    server.on('connection', (socket) => this.#accept(socket));
    this.#pause = new AcceptPause((line) => options.log(`scheduler: ${line}`));
    this.#faults = new FaultLog((line) => options.log(`scheduler: ${line}`));
    // Without a listener a failed accept would end the process.
    server.on('error', (error: NodeJS.ErrnoException) => {
      if (this.#pause.failed(error.errno ?? 0, performance.now())) return;
      options.log(`scheduler: cannot accept: ${error.message}`);
    });
    const { heartbeatMs, lostAfterMs, handshakeTimeoutMs } = options;
    const sweepMs = Math.min(heartbeatMs, lostAfterMs / 4, handshakeTimeoutMs / 4, REFUSAL_LINGER_MS / 2);
    this.#timer = setInterval(() => this.#sweep(), Math.ceil(sweepMs));
  }

  /** Numbers of the members that live. */
  get members(): readonly number[] {
    return this.#roster.members;
  }

  /** Lets go of everyone; to members the scheduler is lost. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    clearInterval(this.#timer);
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const connection of this.#connections.values()) connection.destroy();
    this.#connections.clear();
    this.#pending.clear();
    await closed;
  }

  #accept(socket: Socket): void {
    const connection = new SchedulerConnection(
      ++this.#lastConnection,
      socket,
      this.#context,
      new Admission(this.#options),
    );
    this.#connections.set(connection.id, connection);
    this.#pending.add(connection);
    connection.listen({
      frame: (frame) => this.#take(connection, frame),
      fault: (error) => this.#fault(connection, error),
      gone: () => this.#gone(connection),
    });
    if (this.#pending.size > this.#options.maxPending) {
      const evicted = connectionToEvict(this.#pending, ({ host }) => host);
      this.#refuse(evicted, 'busy', 'too many connections have not authenticated; try again');
      this.#forget(evicted);
      evicted.drop();
    }
  }

  #take(connection: SchedulerConnection, frame: unknown): void {
    if (!connection.admission) return this.#serve(connection, readMemberMessage(frame));
    const step = connection.admission.step(frame, connection.channel);
    if ('refuse' in step) return this.#refuse(connection, step.refuse, step.text);
    if ('reply' in step) return this.#deliver(connection, encodeFrame(step.reply));
    connection.admit();
    this.#pending.delete(connection);
    this.#perform(this.#roster.join(connection.id, step.join));
  }

  #serve(connection: SchedulerConnection, message: MemberMessage): void {
    const { id } = connection;
    switch (message.kind) {
      case 'beat': {
        const waiting = this.#roster.waiting(id);
        return this.#deliver(connection, waiting ? encodeFrame({ kind: 'waiting', waiting }) : BEAT);
      }
      case 'form':
        return this.#perform(this.#roster.form(id, message.request, message.members));
      case 'barrier':
        return this.#perform(this.#roster.barrier(id, message.request, message.name, message.members));
      case 'regroup':
        return this.#perform(this.#roster.regroup(id, message.request));
      case 'withdraw':
        return this.#perform(this.#roster.withdraw(id, message.request));
      case 'leave':
        return this.#drop(connection, 'closed');
      default:
        throw new ProtocolFault(`sent '${message.kind}' after it had joined`);
    }
  }

  /** Outcomes of one event are done before those of another that it causes, so that all see one order. */
  #perform(outcomes: readonly Outcome[]): void {
    this.#outcomes.push(...outcomes);
    if (this.#performing) return;
    this.#performing = true;
    try {
      for (let outcome = this.#outcomes.shift(); outcome; outcome = this.#outcomes.shift()) this.#do(outcome);
    } finally {
      this.#performing = false;
    }
  }

  #do(outcome: Outcome): void {
    switch (outcome.kind) {
      case 'send':
        return this.#send(outcome.to, outcome.message);
      case 'refuse': {
        const connection = this.#connections.get(outcome.connection);
        if (!connection) return;
        this.#pending.add(connection);
        return this.#refuse(connection, outcome.reason, outcome.text);
      }
      case 'joined': {
        const remote = this.#connections.get(outcome.connection)?.remote;
        this.#options.log(`scheduler: ${outcome.title} joined from ${remote}`);
        return this.#later(() => this.emit('joined', outcome));
      }
      case 'left':
        this.#options.log(`scheduler: member ${outcome.member} (${outcome.title}) left: ${outcome.reason}`);
        return this.#later(() => this.emit('left', outcome));
      case 'formed':
        return this.#later(() => this.emit('formed', outcome));
    }
  }

  #send(to: readonly number[], message: SchedulerMessage): void {
    const frame = encodeFrame(message);
    for (const id of to) {
      const connection = this.#connections.get(id);
      if (connection) this.#deliver(connection, frame);
    }
  }

  /** All that is ever sent goes through here: whoever takes nothing of it is stuck, and holds memory. */
  #deliver(connection: SchedulerConnection, frame: Buffer): void {
    connection.send(frame);
    const limit = connection.admission ? MAX_STRANGER_BACKLOG_BYTES : this.#options.maxBacklogBytes;
    if (connection.backlog <= limit) return;
    this.#options.log(
      `scheduler: ${connection.remote} has left ${connection.backlog} bytes unread, more than ${limit}; its connection is closed`,
    );
    // What it does not read would keep the connection open for ever.
    connection.destroy();
    this.#drop(connection, 'lost');
  }

  #refuse(connection: SchedulerConnection, reason: RefusalReason, text: string): void {
    if (connection.refused) return;
    connection.refuse(reason, text);
    this.#count(connection, reason, text);
  }

  /** What strangers cause, so what is said of it is bounded; the counts are not. */
  #count({ host, remote }: SchedulerConnection, reason: RefusalReason, text: string): void {
    this.#refused[reason]++;
    const line = `refused ${remote} (${reason}): ${text}`;
    if (!this.#faults.say(host, line, performance.now())) return;
    this.#later(() => this.emit('refused', { remote, reason, text }));
  }

  /** Events are emitted after the decision is complete, so that a listener that throws cannot leave it half done. */
  #later(tell: () => void): void {
    setImmediate(tell);
  }

  /** Someone broke the protocol: a stranger is refused, a member is lost. */
  #fault(connection: SchedulerConnection, error: unknown): void {
    if (!(error instanceof ProtocolFault)) throw error;
    if (connection.admission) return this.#refuse(connection, 'protocol', `it ${error.message}`);
    this.#options.log(`scheduler: ${connection.remote} ${error.message}; its connection is closed`);
    this.#drop(connection, 'lost');
  }

  #gone(connection: SchedulerConnection): void {
    if (this.#closed) return;
    const stranger = connection.admission !== undefined && !connection.refused;
    if (stranger && connection.said === 'half a frame') {
      this.#count(connection, 'protocol', 'it ended in the middle of a frame');
    } else if (stranger) {
      this.#count(connection, 'silent', 'it went away before it had joined');
    }
    this.#drop(connection, 'lost');
  }

  #drop(connection: SchedulerConnection, reason: LeaveReason): void {
    this.#forget(connection);
    connection.drop();
    this.#perform(this.#roster.leave(connection.id, reason));
  }

  #forget(connection: SchedulerConnection): void {
    this.#connections.delete(connection.id);
    this.#pending.delete(connection);
  }

  #sweep(): void {
    const { lostAfterMs, handshakeTimeoutMs } = this.#options;
    const now = performance.now();
    // If this process was suspended, the signs of life are still unread; nobody is to blame for that.
    const suspended = now - this.#sweptAt > lostAfterMs / 2;
    this.#sweptAt = now;
    this.#pause.failed(probeDescriptors(), now);
    this.#faults.look(now);
    for (const connection of this.#pending) {
      const limit = handshakeTimeoutMs + (connection.refused ? REFUSAL_LINGER_MS : 0);
      if (now - connection.openedAt <= limit) continue;
      if (connection.refused) {
        this.#forget(connection);
        connection.destroy();
      } else {
        this.#refuse(connection, 'silent', `it did not prove itself within ${handshakeTimeoutMs} ms`);
      }
    }
    for (const connection of this.#connections.values()) {
      if (this.#pending.has(connection)) continue;
      if (suspended) connection.heardAt = now;
      else if (now - connection.heardAt > lostAfterMs) this.#drop(connection, 'silent');
    }
  }
}

/** Listens on the first port of the range that is free. */
async function listen({ host, ports: [first, last] }: CompleteOptions): Promise<Server> {
  for (let port = first; port <= last; port++) {
    const server = createServer();
    try {
      await new Promise<void>((resolve, reject) => {
        server.once('error', reject);
        server.listen({ host, port, backlog: 4096 }, () => resolve());
      });
      server.removeAllListeners('error');
      return server;
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      if (code === 'EADDRINUSE' && port < last) continue;
      const which = first === last ? `${first}` : `${first} to ${last}`;
      throw new UsageError(
        'INVALID_ARGUMENT',
        `The scheduler cannot listen on ${host}, port ${which}: ${message}. Choose a port that is free and an interface of this machine.`,
        { host, first, last, errno: code },
        error,
      );
    }
  }
  throw new UsageError('INVALID_ARGUMENT', `There is no port from ${first} to ${last}; give them in order.`);
}
