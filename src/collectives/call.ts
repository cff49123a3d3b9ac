/**
 * A collective call as all ranks must make it: the check of what all collectives are given, the fields that have to
 * agree, their hash, and the sentence that errors use. Invariant: two calls have the same signature if and only if they
 * agree in every field that must (up to a chance of one in four thousand million).
 */
import { UsageError } from '../base/index.ts';
import { Cluster, Group } from '../cluster/index.ts';
import type { Call, Handle, Operation, Steps } from '../progress/index.ts';

/** Options of every collective. */
export interface CollectiveOptions {
  /**
   * Calls with the same tag are matched in the order in which each rank makes them; calls with different tags are
   * independent of each other. From 0 to 2^31 - 1. Default 0.
   */
  readonly tag?: number | undefined;
  /** Must be the same on all ranks; errors name it. Default none. */
  readonly name?: string | undefined;
  /** Leaves the operation when it fires; the other ranks get an error that names this one. */
  readonly signal?: AbortSignal | undefined;
  /** Longest time of the operation, in milliseconds. Default: that of the cluster, ten minutes. */
  readonly deadlineMs?: number | undefined;
  /**
   * Whether waiting long for other ranks is as it should be: the operation has no deadline and is
   * not reported as stalled. Give it on all ranks. Default false.
   */
  readonly isPatient?: boolean | undefined;
}

/** What a rank that has joined needs to take part, and others to compare. Only plain data. */
export interface CallFields {
  readonly collective: string;
  readonly dtype?: string | undefined;
  readonly length?: number | undefined;
  readonly op?: string | undefined;
  readonly algorithm?: string | undefined;
  readonly root?: number | undefined;
  readonly codec?: string | undefined;
  readonly vectors?: number | undefined;
  readonly counts?: readonly number[] | undefined;
  /** Every rank has its own: errors tell them, but they are not in the signature. */
  readonly sendCounts?: readonly number[] | undefined;
  readonly receiveCounts?: readonly number[] | undefined;
  readonly name?: string | undefined;
}

export interface CallPlan extends CollectiveOptions {
  /** Only for a joined rank: the number that the others gave the call. */
  readonly sequence?: number | undefined;
}

/** Tags above are for the library itself. */
export const MAX_TAG = 2 ** 31 - 1;
export const JOIN_TAG = 2 ** 32 - 1;

export function startCall(
  group: Group,
  fields: CallFields,
  plan: CallPlan,
  algorithm: (operation: Operation) => Steps,
): Handle {
  checkCall(group, fields.collective, plan);
  return group.progress.start(group, new CollectiveCall(plan.tag ?? 0, fields), algorithm, plan);
}

/** For collectives that look at the group, or begin, before they come to `startCall`. */
export function checkCall(group: Group, collective: string, { tag = 0, deadlineMs = 1 }: CallPlan): void {
  if (!(group instanceof Group)) throw noGroup(group, collective);
  if (!(Number.isInteger(tag) && tag >= 0 && tag < 2 ** 32)) {
    throw new UsageError('INVALID_ARGUMENT', `tag is ${tag}; give a whole number from 0 to ${MAX_TAG}`, {
      tag,
    });
  }
  if (!(deadlineMs > 0 && Number.isFinite(deadlineMs))) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `deadlineMs is ${deadlineMs}; give a finite number of milliseconds above 0`,
      { deadlineMs },
    );
  }
}

function noGroup(given: unknown, collective: string): UsageError {
  const what = given instanceof Cluster ? 'a cluster and no group' : 'no group';
  return new UsageError(
    'INVALID_ARGUMENT',
    `${collective} was given ${what}; give cluster.world, the group of all ranks, or one that cluster.group(ranks) made`,
    { collective },
  );
}

class CollectiveCall implements Call {
  readonly tag: number;
  readonly signature: number;
  readonly #fields: CallFields;

  constructor(tag: number, fields: CallFields) {
    this.tag = tag;
    this.#fields = fields;
    this.signature = signatureOf(fields);
  }

  get spec(): Readonly<Record<string, unknown>> {
    return { ...this.#fields, sendCounts: undefined, receiveCounts: undefined, tag: this.tag };
  }

  describe(): string {
    const { collective, dtype, length, op, algorithm, root, codec, vectors, name } = this.#fields;
    const { counts, sendCounts, receiveCounts } = this.#fields;
    const what = [
      length === undefined ? dtype : `${length.toLocaleString('en')} ${dtype}`,
      vectors === undefined || vectors === 1 ? '' : `${vectors} vectors`,
      op,
      root === undefined ? '' : `root ${root}`,
      listed('counts', counts),
      listed('sends', sendCounts),
      listed('receives', receiveCounts),
      codec,
      algorithm,
      this.tag === 0 || this.tag > MAX_TAG ? '' : `tag ${this.tag}`,
    ].filter(Boolean);
    const title = name === undefined || name === '' ? collective : `${collective} '${name}'`;
    return what.length === 0 ? title : `${title} (${what.join(', ')})`;
  }
}

function listed(what: string, counts: readonly number[] | undefined): string {
  if (counts === undefined) return '';
  return `${what} ${counts.slice(0, 16).join(' ')}${counts.length > 16 ? ' …' : ''}`;
}

/** Words are hashed once and remembered: a small collective takes less time than their characters would. */
const words = new Map<string, number>();
const MAX_WORDS = 65536;

export function signatureOf(fields: CallFields): number {
  let hash = mix(0x811c9dc5, wordOf(fields.collective));
  hash = mix(hash, wordOf(fields.dtype));
  hash = mix(hash, fields.length ?? -1);
  hash = mix(hash, wordOf(fields.op));
  hash = mix(hash, wordOf(fields.algorithm));
  hash = mix(hash, fields.root ?? -1);
  hash = mix(hash, wordOf(fields.codec));
  hash = mix(hash, fields.vectors ?? -1);
  hash = mix(hash, wordOf(fields.name));
  if (fields.counts) for (const count of fields.counts) hash = mix(hash, count);
  return (hash ^ (hash >>> 16)) >>> 0;
}

function mix(hash: number, value: number): number {
  const mixed = Math.imul(hash ^ value, 0x9e3779b1);
  return mixed ^ (mixed >>> 15);
}

function wordOf(word: string | undefined): number {
  if (word === undefined || word === '') return 0;
  const known = words.get(word);
  if (known !== undefined) return known;
  let hash = 0x811c9dc5;
  for (let i = 0; i < word.length; i++) hash = Math.imul(hash ^ word.charCodeAt(i), 0x01000193);
  if (words.size >= MAX_WORDS) words.clear();
  words.set(word, hash | 0);
  return hash | 0;
}
