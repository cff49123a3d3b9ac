/**
 * What workers tell each other besides gradients: what the first one says, which then counts for all, and numbers of each. Not
 * for the hot path: every call takes memory until the thread is closed. All workers make the same calls in the same order.
 */
import type { CommunicationThread } from '../communication/index.ts';

/** Numbers of each worker, by rank; as many on all of them. */
export function tellAll(thread: CommunicationThread, own: readonly number[], name: string): number[][] {
  const [mine, all] = [own.length, own.length * thread.world.size].map((length) =>
    thread.allocate('float64', Math.max(1, length)),
  );
  mine!.view.set(own);
  thread.allGather(mine!, all!, { name }).wait();
  return Array.from({ length: thread.world.size }, (_, rank) => [
    ...all!.view.subarray(rank * own.length, (rank + 1) * own.length),
  ]);
}

/** Plain data, the same on all workers afterwards: that of the first. */
export function agree<T>(thread: CommunicationThread, own: T): T {
  const text = Buffer.from(JSON.stringify(own ?? null));
  const length = thread.allocate('int32', 1);
  length.view[0] = text.length;
  thread.broadcast(length, { name: 'length of what the first worker says' }).wait();
  const bytes = thread.allocate('uint8', length.view[0]);
  if (thread.world.rank === 0) bytes.view.set(text);
  thread.broadcast(bytes, { name: 'what the first worker says' }).wait();
  return JSON.parse(Buffer.from(bytes.view).toString()) as T;
}

/** A text of each worker, by rank. */
export function tellAllTexts(thread: CommunicationThread, own: string, name: string): string[] {
  const bytes = Buffer.from(own);
  const counts = tellAll(thread, [bytes.length], `length of ${name}`).map(([length]) => length!);
  const mine = thread.allocate('uint8', Math.max(1, bytes.length));
  const all = thread.allocate(
    'uint8',
    Math.max(
      1,
      counts.reduce((sum, count) => sum + count, 0),
    ),
  );
  mine.view.set(bytes);
  thread.allGather(mine.slice(0, bytes.length), all, { counts, name }).wait();
  let end = 0;
  return counts.map((count) => Buffer.from(all.view.slice(end, (end += count))).toString());
}
