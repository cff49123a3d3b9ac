/**
 * Starts a thread from a module of this package, be it TypeScript (from the sources) or JavaScript (from the compiled
 * package). It knows nothing of what the thread does. Invariant: the thread gets no arguments of the process that
 * would make it load something else.
 */
import { Worker } from 'node:worker_threads';
import type { Transferable } from 'node:worker_threads';

/** `entry` without its ending: `new URL('./thread-main', import.meta.url)`; it exists as .ts beside .ts sources. */
export function startThread(entry: URL, workerData: object, transferList: Transferable[] = []): Worker {
  const options = { workerData, transferList, execArgv: [], stdin: false };
  if (!import.meta.url.endsWith('.ts')) return new Worker(new URL(`${entry.href}.js`), options);
  // A thread cannot load TypeScript by itself, so it is first given the loader that runs the sources.
  const here = JSON.stringify(import.meta.url);
  const module = JSON.stringify(`${entry.href}.ts`);
  const program = `require('node:module').register('tsx/esm', ${here}, { data: true }); void import(${module});`;
  return new Worker(program, { ...options, eval: true });
}
