/**
 * What all workers must have alike although each could come to another answer: the first one's counts. Plain data, sent as
 * text. Invariant: when it returns, every worker holds what the first one gave.
 */
import type { CommunicationThread } from '../communication/index.ts';

export function agree<T>(thread: CommunicationThread, own: T): T {
  const text = Buffer.from(JSON.stringify(own ?? null));
  const length = thread.allocate('int32', 1);
  length.view[0] = text.length;
  thread.broadcast(length, { name: 'length of what the first worker says' }).wait();
  const bytes = thread.allocate('uint8', length.view[0]!);
  if (thread.world.rank === 0) bytes.view.set(text);
  thread.broadcast(bytes, { name: 'what the first worker says' }).wait();
  return JSON.parse(Buffer.from(bytes.view).toString()) as T;
}
