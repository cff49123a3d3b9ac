/** What listens and has no file descriptor left: it says so, once, and does not spend its time on asking again. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { AcceptPause, EAGAIN, EMFILE, ENFILE } from '../../src/sockets/index.ts';
import { programOf } from '../support/test-program.ts';

const PROGRAM = fileURLToPath(new URL('./descriptors-program.ts', import.meta.url));
const LIMIT = 128;

describe('a pause of accepting', () => {
  it('begins when there are no descriptors, grows to a second, and ends with the first success', () => {
    const lines: string[] = [];
    const pause = new AcceptPause((line) => void lines.push(line));
    expect(pause.failed(-EAGAIN, 0)).toBe(false);
    expect(pause.waitMs(0)).toBe(0);
    let nowMs = 0;
    const waits = Array.from({ length: 8 }, () => {
      expect(pause.failed(-EMFILE, nowMs)).toBe(true);
      const waitMs = pause.waitMs(nowMs);
      nowMs += waitMs;
      expect(pause.waitMs(nowMs)).toBe(0);
      return waitMs;
    });
    expect(waits).toEqual([20, 40, 80, 160, 320, 640, 1000, 1000]);
    pause.succeeded();
    pause.failed(-EMFILE, nowMs);
    expect(pause.waitMs(nowMs)).toBe(20);
    expect(lines).toEqual([expect.stringMatching(/^cannot accept connections \(EMFILE\): .*ulimit -n/)]);
  });

  it('is told once a minute', () => {
    const lines: string[] = [];
    const pause = new AcceptPause((line) => void lines.push(line));
    for (let nowMs = 0; nowMs < 180_000; nowMs += 100) pause.failed(-ENFILE, nowMs);
    expect(lines).toEqual(Array.from({ length: 3 }, () => expect.stringContaining('fs.file-max') as string));
  });
});

describe.skipIf(!hasSharedMemory())('without file descriptors', () => {
  it.each(['server', 'transport', 'scheduler'])(
    'a %s says so and rests until there are some',
    async (kind) => {
      const command = [process.execPath, ...programOf(PROGRAM), kind].map((word) => `'${word}'`).join(' ');
      const child = spawn('/bin/sh', ['-c', `ulimit -n ${LIMIT}; exec ${command}`], {
        stdio: ['pipe', 'pipe', 'inherit'],
      });
      const told = createInterface(child.stdout)[Symbol.asyncIterator]();
      const next = async (): Promise<Record<string, unknown>> =>
        JSON.parse((await told.next()).value as string) as Record<string, unknown>;
      const { port } = await next();
      const waiting = connect(Number(port), '127.0.0.1');
      waiting.on('error', () => undefined);
      await once(waiting, 'connect');
      child.stdin.write('somebody waits\n');
      const { busy, lines } = await next();
      expect(lines).toEqual([expect.stringMatching(/cannot accept connections \(EMFILE\): .*ulimit -n/)]);
      // One that asks again and again takes all that it gets; one that rests takes next to nothing.
      expect(busy).toBeLessThan(0.3);
      // Whoever comes when there are some again is heard: something that is not of the protocol ends the connection.
      const later = connect(Number(port), '127.0.0.1');
      later.on('error', () => undefined);
      later.write('GET / HTTP/1.1\r\nHost: somebody.who.speaks.another.protocol\r\n\r\n');
      await once(later.resume(), 'close');
      waiting.destroy();
      child.stdin.end();
      await once(child, 'exit');
    },
  );
});
