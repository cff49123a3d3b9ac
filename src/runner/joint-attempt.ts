/**
 * What workers do each for itself, but which none may go on without: if it fails on one of them, it fails on all. So an error of one
 * worker is found out by all of them alike, and nobody waits for one that has given up.
 * Invariant: it is done on all workers or on none.
 */
import { pack, unpack, type PackedError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import { tellAllTexts } from '../exchange/index.ts';

/** All workers call it together. What was done here in vain, because another worker failed, is undone. */
export function attemptTogether<T>(
  thread: CommunicationThread,
  work: () => T,
  undo: (done: T) => void = () => undefined,
): T {
  const own = attempt(work);
  const text = 'error' in own ? JSON.stringify(pack(own.error)) : '';
  const texts = toldOr(
    () => 'value' in own && undo(own.value),
    () => tellAllTexts(thread, text, 'whether all workers can go on'),
  );
  if ('error' in own) throw own.error;
  const rank = texts.findIndex((one) => one !== '');
  if (rank === -1) return own.value;
  undo(own.value);
  const packed = JSON.parse(texts[rank]!) as PackedError;
  throw unpack({ ...packed, message: `worker ${rank}: ${packed.message}` });
}

/** The same of what takes a while; others wait for it meanwhile. */
export async function attemptLaterTogether<T>(
  thread: CommunicationThread,
  work: () => Promise<T>,
  undo?: (done: T) => void,
): Promise<T> {
  const own = await work().then(
    (value) => () => value,
    (error: unknown) => () => {
      throw error as Error;
    },
  );
  return attemptTogether(thread, own, undo);
}

/** One that cannot be told of it is lost, which is known to all of them. */
function toldOr<T>(undo: () => void, tell: () => T): T {
  try {
    return tell();
  } catch (error) {
    undo();
    throw error;
  }
}

function attempt<T>(work: () => T): { readonly value: T } | { readonly error: unknown } {
  try {
    return { value: work() };
  } catch (error) {
    return { error };
  }
}
