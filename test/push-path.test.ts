/**
 * The files that one push passes, from `fit` to the socket of a connection to another host, and from
 * the server's socket to the sum that it holds. It counts the files that hand the push on: each has a
 * call (or, at the border of a thread, a message) that the next one takes, so that the push stops if
 * it is left out. What such a file asks on the way and gets an answer from (checks, encoding, names)
 * is not counted, nor is what is done once before the first step. The list is written by hand; that
 * each call is there, that the next file defines what is called, and that the caller knows it by an
 * import or is given it by one who does, is looked up in the sources.
 */
import { readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

const root = fileURLToPath(new URL('../src/', import.meta.url));
const read = (path: string) => readFileSync(join(root, path), 'utf8');

interface Hop {
  readonly file: string;
  /** What it defines that the file before calls. */
  readonly takes: string;
  /** How it hands the push on; absent in the last one. */
  readonly calls?: string;
  /** Who makes the next one known to it, where it does not import it: by an argument, or as a thread. */
  readonly giver?: string;
}

const WORKER: readonly Hop[] = [
  { file: 'runner/fit.ts', takes: 'export async function fit(', calls: 'runner.run(' },
  {
    ...{ file: 'runner/runner.ts', takes: 'async *run(', calls: 'shared.step(' },
    giver: 'runner/get-runner.ts',
  },
  { file: 'runner/shared-step.ts', takes: 'async step(', calls: 'walk.step()' },
  {
    ...{ file: 'runtime/step-walk.ts', takes: 'step(): void | Promise<void>', calls: '.start()' },
    giver: 'exchange/server-exchange.ts',
  },
  {
    ...{ file: 'exchange/answer.ts', takes: 'start(): void', calls: 'this.#ask()' },
    giver: 'exchange/server-exchange.ts',
  },
  { file: 'exchange/server-exchange.ts', takes: 'this.#store.push(', calls: 'this.#store.push(' },
  {
    ...{ file: 'exchange/thread-store.ts', takes: '  push(...args', calls: 'this.#caller.request(' },
    giver: 'exchange/store-thread.ts',
  },
  { file: 'exchange/store-thread.ts', takes: 'request: (what, ask) =>', calls: 'this.#link.request(' },
  {
    ...{ file: 'base/thread-link.ts', takes: 'async request<', calls: 'this.#port.postMessage(' },
    giver: 'exchange/store-thread.ts',
  },
  {
    ...{ file: 'exchange/store-thread-main.ts', takes: 'receiveMessageOnPort(port)' },
    calls: 'call(...unpacked)',
  },
  { file: 'kvstore/remote/remote-store.ts', takes: '  push(keys', calls: 'this.#lists.exchange(' },
  {
    ...{ file: 'kvstore/remote/exchange-lists.ts', takes: 'async exchange(' },
    calls: 'this.#lines[core]!.request(',
  },
  {
    ...{ file: 'kvstore/remote/core-line.ts', takes: '  request(', calls: 'this.#stream!.write()' },
  },
  { file: 'server/wire/message-stream.ts', takes: '  write(', calls: 'vectors.send(this.fd' },
  {
    ...{ file: 'server/wire/scattered-bytes.ts', takes: '  send(fd: number', calls: 'this.#libc.' },
  },
  { file: 'sockets/libc.ts', takes: 'sendmsg' },
];

const SERVER: readonly Hop[] = [
  { file: 'server/cores/core-loop.ts', takes: '  run(', calls: 'stream.read(mayGoOn)' },
  {
    ...{ file: 'server/wire/message-stream.ts', takes: '  read(', calls: 'this.user.receive(' },
    giver: 'server/cores/core-loop.ts',
  },
  {
    ...{ file: 'server/cores/session.ts', takes: '  receive(', calls: 'this.tenant.core.push(' },
    giver: 'server/cores/tenant.ts',
  },
  { file: 'server/server-core.ts', takes: '  push(push: DensePush', calls: 'this.#updates.hold(' },
  { file: 'server/key-updates.ts', takes: '  hold(key', calls: 'held.holdDense(' },
  { file: 'server/held-gradient.ts', takes: '  holdDense(', calls: 'this.#aggregator.chunkInto(' },
  { file: 'server/aggregation.ts', takes: '  chunkInto(', calls: 'this.#kernels.sum(' },
  { file: 'kernels/kernels.ts', takes: '  sum<' },
];

/** Files that one imports or passes on, by a folder's index.ts too. */
function importsOf(path: string): string[] {
  const named = [...read(path).matchAll(/(?:from|import\() ?'(\.[^']+)'|new URL\('(\.[^']+)'/g)];
  return named.map(([, file, thread]) => {
    const target = normalize(join(dirname(path), file ?? thread!));
    return target.endsWith('.ts') ? target : `${target}.ts`;
  });
}

function knows(path: string, other: string): boolean {
  const direct = importsOf(path);
  return direct.some(
    (one) => one === other || (one.endsWith('index.ts') && importsOf(one).some((passed) => passed === other)),
  );
}

describe('a push', () => {
  it.each([
    ['a worker', 18, WORKER],
    ['a server', 12, SERVER],
  ] as const)('passes at most so many files of %s: %i', (_who, most, path) => {
    expect(path.length).toBeLessThanOrEqual(most);
    expect(new Set(path.map(({ file }) => file)).size).toBe(path.length);
    for (const [i, { file, takes, calls, giver = file }] of path.entries()) {
      expect(read(file), file).toContain(takes);
      const next = path[i + 1];
      if (!next) continue;
      expect(read(file), file).toContain(calls);
      // Who gives it may be the next one itself.
      expect(giver === next.file || knows(giver, next.file), `${giver} knows ${next.file}`).toBe(true);
    }
  });
});
