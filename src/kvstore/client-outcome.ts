/**
 * How the workers of a client learn what came of the exchange that rank 0 made for all of them: a few numbers first, then,
 * by these, the data or the error. Invariants: if rank 0 fails, all ranks fail with the same class, code and message;
 * no rank waits for data that will not come.
 */
import { pack, unpack } from '../base/index.ts';
import type { PackedError } from '../base/index.ts';
import { broadcast } from '../collectives/index.ts';
import type { Channel } from './collective-channel.ts';

export interface Outcome {
  readonly version: number;
  readonly staleness: number;
}

/**
 * `act` is rank 0's exchange of so many keys, undefined on the other ranks. `data` is a collective by which all ranks then
 * get what it brought; it is not called if there is an error. Returns the outcome of each key.
 */
export async function shareOutcomes(
  channel: Channel,
  keys: number,
  act: (() => Promise<readonly Outcome[]>) | undefined,
  data?: () => PromiseLike<void>,
): Promise<readonly Outcome[]> {
  return act ? lead(channel, keys, act, data) : follow(channel, keys, data);
}

/** The same of one key. */
export async function shareOutcome(
  channel: Channel,
  act: (() => Promise<Outcome>) | undefined,
  data?: () => PromiseLike<void>,
): Promise<Outcome> {
  const [outcome] = await shareOutcomes(channel, 1, act && (async () => [await act()]), data);
  return outcome!;
}

async function lead(
  channel: Channel,
  keys: number,
  act: () => Promise<readonly Outcome[]>,
  data: (() => PromiseLike<void>) | undefined,
): Promise<readonly Outcome[]> {
  let outcomes: readonly Outcome[];
  try {
    outcomes = await act();
  } catch (error) {
    // If the others cannot be told any more, they have an error already; this one is the cause.
    await tellError(channel, keys, error).catch(() => undefined);
    throw error;
  }
  await Promise.all([tell(channel, 0, outcomes), begun(data)]);
  return outcomes;
}

async function follow(
  channel: Channel,
  keys: number,
  data: (() => PromiseLike<void>) | undefined,
): Promise<readonly Outcome[]> {
  const words = channel.take('float64', wordsOf(keys));
  await broadcast(channel.group, words, channel.options);
  const errorBytes = words.view[0]!;
  if (errorBytes > 0) {
    const bytes = channel.take('uint8', errorBytes);
    await broadcast(channel.group, bytes, channel.options);
    throw unpack(JSON.parse(Buffer.from(bytes.view).toString()) as PackedError);
  }
  await data?.();
  return Array.from({ length: keys }, (_, i) => ({
    version: words.view[1 + 2 * i]!,
    staleness: words.view[2 + 2 * i]!,
  }));
}

/** Bytes of the error, 0 if there is none; then version and staleness of each key. */
function wordsOf(keys: number): number {
  return 1 + 2 * keys;
}

async function tell(channel: Channel, errorBytes: number, outcomes: readonly Outcome[]): Promise<void> {
  const words = channel.take('float64', wordsOf(outcomes.length));
  words.view.set([errorBytes, ...outcomes.flatMap(({ version, staleness }) => [version, staleness])]);
  await broadcast(channel.group, words, channel.options);
}

async function tellError(channel: Channel, keys: number, error: unknown): Promise<void> {
  const text = Buffer.from(JSON.stringify(pack(error), (_, value: unknown) => asPlain(value)));
  const bytes = channel.take('uint8', text.length);
  bytes.view.set(text);
  const nothing = Array.from({ length: keys }, () => ({ version: 0, staleness: 0 }));
  const send = () => broadcast(channel.group, bytes, channel.options);
  await Promise.all([tell(channel, text.length, nothing), begun(send)]);
}

/**
 * Where a worker is lost, a collective throws before it begins: that must not leave a promise
 * beside it alone.
 */
async function begun(collective: (() => PromiseLike<void>) | undefined): Promise<void> {
  await collective?.();
}

/** JSON has no big numbers. */
function asPlain(value: unknown): unknown {
  return typeof value === 'bigint' ? String(value) : value;
}
