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

/** Bytes of the error, 0 if there is none; version; staleness. */
const WORDS = 3;
const NOTHING: Outcome = { version: 0, staleness: 0 };

/**
 * `act` is rank 0's exchange, undefined on the other ranks. `data` is a collective by which all ranks then get what it
 * brought; it is not called if there is an error.
 */
export async function shareOutcome(
  channel: Channel,
  act: (() => Promise<Outcome | void>) | undefined,
  data?: () => PromiseLike<void>,
): Promise<Outcome> {
  return act ? lead(channel, act, data) : follow(channel, data);
}

async function lead(
  channel: Channel,
  act: () => Promise<Outcome | void>,
  data: (() => PromiseLike<void>) | undefined,
): Promise<Outcome> {
  let outcome: Outcome;
  try {
    outcome = (await act()) ?? NOTHING;
  } catch (error) {
    // If the others cannot be told any more, they have an error already; this one is the cause.
    await tellError(channel, error).catch(() => undefined);
    throw error;
  }
  await Promise.all([tell(channel, [0, outcome.version, outcome.staleness]), data?.()]);
  return outcome;
}

async function follow(channel: Channel, data: (() => PromiseLike<void>) | undefined): Promise<Outcome> {
  const words = channel.take('float64', WORDS);
  await broadcast(channel.group, words, channel.options);
  const [errorBytes = 0, version = 0, staleness = 0] = words.view;
  if (errorBytes > 0) {
    const bytes = channel.take('uint8', errorBytes);
    await broadcast(channel.group, bytes, channel.options);
    throw unpack(JSON.parse(Buffer.from(bytes.view).toString()) as PackedError);
  }
  await data?.();
  return { version, staleness };
}

async function tell(channel: Channel, values: readonly [number, number, number]): Promise<void> {
  const words = channel.take('float64', WORDS);
  words.view.set(values);
  await broadcast(channel.group, words, channel.options);
}

async function tellError(channel: Channel, error: unknown): Promise<void> {
  const text = Buffer.from(JSON.stringify(pack(error), (_, value: unknown) => asPlain(value)));
  const bytes = channel.take('uint8', text.length);
  bytes.view.set(text);
  await Promise.all([tell(channel, [text.length, 0, 0]), broadcast(channel.group, bytes, channel.options)]);
}

/** JSON has no big numbers. */
function asPlain(value: unknown): unknown {
  return typeof value === 'bigint' ? String(value) : value;
}
