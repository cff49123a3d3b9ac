/**
 * What workers tell each other besides gradients: what the first one says, which then counts for all, and numbers or a text of
 * each. All workers make the same calls in the same order. Memory for it is kept for the next call.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { DType, Region } from '../memory/index.ts';

/** Some of the workers, as a group of the communication thread. */
export interface SomeWorkers {
  readonly group: number;
  readonly size: number;
}

/** Numbers of each worker, by rank; as many on all of them. Default: of all workers. */
export function tellAll(
  thread: CommunicationThread,
  own: readonly number[],
  name: string,
  { group, size }: SomeWorkers = { group: thread.world.id, size: thread.world.size },
): number[][] {
  const { length } = own;
  if (length === 0) return Array.from({ length: size }, () => []);
  const mine = room(thread, 'own', 'float64', length);
  const all = room(thread, 'all', 'float64', length * size);
  mine.view.set(own);
  thread.allGather(mine, all, { name, group }).wait();
  return Array.from({ length: size }, (_, rank) => [
    ...all.view.subarray(rank * length, (rank + 1) * length),
  ]);
}

/** A text of each worker, by rank. */
export function tellAllTexts(thread: CommunicationThread, own: string, name: string): string[] {
  const bytes = Buffer.from(own);
  const counts = tellAll(thread, [bytes.length], `length of ${name}`).map(([length]) => length!);
  const mine = room(thread, 'own', 'uint8', bytes.length);
  const total = counts.reduce((sum, count) => sum + count, 0);
  const all = room(thread, 'all', 'uint8', total);
  mine.view.set(bytes);
  if (total > 0) thread.allGather(mine, all, { counts, name }).wait();
  let end = 0;
  return counts.map((count) => Buffer.from(all.view.slice(end, (end += count))).toString());
}

/** Plain data, the same on all workers afterwards: that of the first. */
export function agree<T>(thread: CommunicationThread, own: T): T {
  const text = Buffer.from(JSON.stringify(own ?? null));
  const length = room(thread, 'length', 'int32', 1);
  length.view[0] = text.length;
  thread.broadcast(length, { name: 'length of what the first worker says' }).wait();
  const bytes = room(thread, 'all', 'uint8', length.view[0]);
  if (thread.world.rank === 0) bytes.view.set(text);
  thread.broadcast(bytes, { name: 'what the first worker says' }).wait();
  return JSON.parse(Buffer.from(bytes.view).toString()) as T;
}

/** What was taken is used again; that which has become too short is given back, in the background. */
const rooms = new WeakMap<CommunicationThread, Map<string, Region>>();

function room<T extends DType>(
  thread: CommunicationThread,
  use: string,
  dtype: T,
  length: number,
): Region<T> {
  let taken = rooms.get(thread);
  if (!taken) rooms.set(thread, (taken = new Map<string, Region>()));
  const key = `${use} ${dtype}`;
  let region = taken.get(key) as Region<T> | undefined;
  if (!region || region.length < length) {
    if (region) void thread.free(region);
    region = thread.allocate(dtype, 2 ** Math.ceil(Math.log2(Math.max(64, length))));
    taken.set(key, region);
  }
  return region.slice(0, length);
}
