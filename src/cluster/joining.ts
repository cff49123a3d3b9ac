/**
 * How a process gets into the cluster: dial until someone answers, prove the secret both ways, say who it is, wait for
 * its number. Not what a member does afterwards (membership.ts). Invariant: it ends at the deadline at the latest, and
 * every way in which it fails says whom it was waiting for.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { PeerError, UsageError } from '../base/index.ts';
import { challenge, keyOfSecret, Transcript } from '../sockets/index.ts';
import { before, Late } from './deadline.ts';
import { ProtocolFault } from './frames.ts';
import { LineClosed } from './line.ts';
import type { Line } from './line.ts';
import type { Dialed, LineTarget, LineTls } from './line-messages.ts';
import { PROTOCOL_VERSION, PURPOSE } from './messages.ts';
import type { RefusalReason, SchedulerMessage, Waiting, World } from './messages.ts';

export interface JoinOptions {
  /** Where the scheduler is: 'host:port'. */
  readonly scheduler: string;
  /** What all processes of the cluster know, at least 32 hexadecimal digits of random bytes; never sent. */
  readonly secret: string;
  /** For messages: 'process 4711 on host-a'. */
  readonly title: string;
  /** Processes with the same host share memory; see `hostIdentity`. */
  readonly host: string;
  /** What others need to know to reach this process; or how to make it of the local address of the connection. */
  readonly address:
    Readonly<Record<string, unknown>> | ((localAddress: string) => Readonly<Record<string, unknown>>);
  /** The number this process wants in the first group. Default any; newcomers must not want one. */
  readonly wantedRank?: number | undefined;
  /** Trust for a scheduler with TLS. Default none: the connection is not encrypted. */
  readonly tls?: LineTls | undefined;
  /** Longest wait for the scheduler and for all others to come, in milliseconds. Default 60,000. */
  readonly joinTimeoutMs?: number | undefined;
  /**
   * After how long `onWaiting` first says what the wait is for, in milliseconds; each time after twice as long.
   * Default 2,000.
   */
  readonly reportAfterMs?: number | undefined;
  /** Receives what the wait is for. Default: none. */
  readonly onWaiting?: ((report: WaitingReport) => void) | undefined;
  /** Ends the attempt with CANCELLED. Default none. */
  readonly signal?: AbortSignal | undefined;
}

export interface WaitingReport {
  /** How long the process has been trying, in milliseconds. */
  readonly waitedMs: number;
  /** What it waits for, as a sentence. */
  readonly text: string;
  /** What the scheduler said; undefined while it has not been reached. */
  readonly waiting: Waiting | undefined;
}

export interface Joined {
  readonly member: number;
  readonly world: World;
  readonly localAddress: string;
}

const FIRST_RETRY_MS = 20;
const LONGEST_RETRY_MS = 500;

/** The state of an attempt, for reports and errors. */
interface Progress {
  /** Why the scheduler could not be reached the last time; undefined while it is connected. */
  trouble: string | undefined;
  waiting: Waiting | undefined;
}

/** Joins over a line, which is left to the caller to close when this fails. */
export async function join(line: Line, options: JoinOptions): Promise<Joined> {
  const { scheduler, joinTimeoutMs = 60_000, reportAfterMs = 2000, signal } = options;
  const target = parseTarget(scheduler, options.tls);
  keyOfSecret(options.secret);
  const startedAt = performance.now();
  const progress: Progress = { trouble: 'it has not answered yet', waiting: undefined };
  const limit = `this process gives up after ${joinTimeoutMs} ms (joinTimeoutMs)`;
  let reports: NodeJS.Timeout;
  // Less and less often: what has been said twice is known.
  const reportAfter = (ms: number): void => {
    reports = setTimeout(() => {
      reportAfter(2 * ms);
      const waitedMs = Math.round(performance.now() - startedAt);
      const text = `${describe(scheduler, progress)}; ${limit}`;
      options.onWaiting?.({ waitedMs, text, waiting: progress.waiting });
    }, ms);
  };
  reportAfter(reportAfterMs);
  const over = new AbortController();
  try {
    const work = attempts(line, target, options, progress, over.signal);
    return await before(work, joinTimeoutMs, signal, `Joining the cluster of ${scheduler}`);
  } catch (error) {
    if (error instanceof Late) throw late(scheduler, joinTimeoutMs, progress);
    throw error;
  } finally {
    over.abort();
    clearTimeout(reports!);
  }
}

export function parseTarget(scheduler: string, tls: LineTls | undefined): LineTarget {
  const match = /^(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})$/.exec(scheduler);
  const port = Number(match?.[3]);
  if (!match || port < 1 || port > 65_535) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `'${scheduler}' is not the address of a scheduler; give a host and a port, as in 'host-a:7077'.`,
      { scheduler },
    );
  }
  return { host: match[1] ?? match[2]!, port, tls };
}

async function attempts(
  line: Line,
  target: LineTarget,
  options: JoinOptions,
  progress: Progress,
  over: AbortSignal,
): Promise<Joined> {
  for (let retryMs = FIRST_RETRY_MS; !over.aborted; retryMs = Math.min(2 * retryMs, LONGEST_RETRY_MS)) {
    try {
      const dialed = await line.dial(target);
      await introduce(line, options, dialed);
      progress.trouble = undefined;
      return { ...(await welcome(line, progress)), localAddress: dialed.localAddress };
    } catch (error) {
      const again = error instanceof LineClosed || (error instanceof Refusal && error.reason === 'busy');
      if (!again) throw translate(error, options);
      progress.trouble = error.message;
      progress.waiting = undefined;
    }
    // Many processes start at the same moment; they should not come back at the same moment.
    await pause(retryMs * (0.5 + Math.random()), undefined, { signal: over });
  }
  throw new Late('the attempt is over');
}

/** The process's side of the handshake. */
async function introduce(line: Line, options: JoinOptions, { localAddress, channel }: Dialed): Promise<void> {
  const { scheduler, title, host, wantedRank } = options;
  const transcript = new Transcript(PURPOSE, PROTOCOL_VERSION, channel);
  const key = keyOfSecret(options.secret);
  const hello = { kind: 'hello', version: PROTOCOL_VERSION, nonce: challenge() } as const;
  transcript.add(hello);
  line.send(hello);
  transcript.add(await expect(line, 'challenge'));
  transcript.add({ kind: 'answer' });
  line.send({ kind: 'answer', proof: transcript.answer(key, 'caller') });
  const accepted = await expect(line, 'accepted');
  transcript.add(accepted);
  if (!transcript.verify(key, 'listener', accepted.proof)) {
    throw new PeerError(
      'REFUSED',
      `The scheduler at ${scheduler} could not prove that it knows the secret; check that the address is right and that all have the same secret.`,
      { scheduler, title },
    );
  }
  line.trust(accepted.heartbeatMs, accepted.lostAfterMs);
  const address = typeof options.address === 'function' ? options.address(localAddress) : options.address;
  const joining = {
    ...({ kind: 'join', title, host, address } as const),
    ...(wantedRank === undefined ? {} : { wantedRank }),
  };
  transcript.add(joining);
  line.send({ ...joining, proof: transcript.answer(key, 'caller') });
}

/** Waits for the first group to be complete, or for a regroup to take this process in. */
async function welcome(line: Line, progress: Progress): Promise<Pick<Joined, 'member' | 'world'>> {
  let world: World | undefined;
  for (;;) {
    const message = await line.next();
    if (message.kind === 'waiting') progress.waiting = message.waiting;
    else if (message.kind === 'world') world = message.world;
    else if (message.kind === 'refused') throw new Refusal(message.reason, message.text);
    else if (message.kind === 'welcome' && world) return { member: message.member, world };
  }
}

async function expect<K extends 'challenge' | 'accepted'>(
  line: Line,
  kind: K,
): Promise<Extract<SchedulerMessage, { kind: K }>> {
  const message = await line.next();
  if (message.kind === 'refused') throw new Refusal(message.reason, message.text);
  if (message.kind !== kind) throw new ProtocolFault(`sent '${message.kind}' where '${kind}' was expected`);
  return message as Extract<SchedulerMessage, { kind: K }>;
}

class Refusal extends Error {
  override readonly name = 'Refusal';
  readonly reason: RefusalReason;

  constructor(reason: RefusalReason, text: string) {
    super(text);
    this.reason = reason;
  }
}

function translate(error: unknown, { scheduler, title, wantedRank }: JoinOptions): unknown {
  const facts = { scheduler, title, wantedRank };
  if (error instanceof Refusal) {
    const text = `The scheduler at ${scheduler} refused ${title}: ${error.message}.`;
    return new PeerError('REFUSED', text, { ...facts, reason: error.reason });
  }
  if (error instanceof ProtocolFault) {
    const text = `What listens at ${scheduler} ${error.message}; check that a scheduler of this version listens there.`;
    return new PeerError('PROTOCOL_VIOLATION', text, facts, error);
  }
  return error;
}

function late(scheduler: string, joinTimeoutMs: number, progress: Progress): PeerError {
  const { waiting, trouble } = progress;
  const facts = { scheduler, joinTimeoutMs, ...waiting };
  const text = `${describe(scheduler, progress)} after ${joinTimeoutMs} ms`;
  if (trouble !== undefined) {
    return new PeerError('UNREACHABLE', `${text}; start the scheduler, or correct its address.`, facts);
  }
  const next = waiting?.newcomer ? 'let the members call regroup()' : 'start the processes that are missing';
  return new PeerError('TIMEOUT', `${text}; ${next}, or raise joinTimeoutMs.`, facts);
}

function describe(scheduler: string, { trouble, waiting }: Progress): string {
  if (trouble !== undefined) return `The scheduler at ${scheduler} cannot be reached (${trouble})`;
  if (!waiting) return `The scheduler at ${scheduler} has not said yet who is missing`;
  const { present, size, missingRanks, newcomer } = waiting;
  if (newcomer)
    return `The members of the cluster at ${scheduler} have not regrouped, for which ${present} wait`;
  const missing = size - present;
  // Only where everybody wants a rank is it known which are missing.
  const which =
    missingRanks.length === missing ? `: rank${missing > 1 ? 's' : ''} ${missingRanks.join(', ')}` : '';
  return `${present} of ${size} processes have come to the scheduler at ${scheduler}, ${missing} missing${which}`;
}
