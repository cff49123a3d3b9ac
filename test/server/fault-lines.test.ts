/** What strangers can make a server write to its log, by a clock of the test. */
import { expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { ParameterServer } from '../../src/server/index.ts';
import { OneThreadHost } from './one-thread-host.ts';
import { RawWorker, until } from './raw-worker.ts';

it.skipIf(!hasSharedMemory())('strangers cannot fill the log of a server', async () => {
  const watched = { nowMs: 0, receivedBytes: 0 };
  const lines: string[] = [];
  const log = (line: string) => void lines.push(line);
  const server = await ParameterServer.start({ log }, new OneThreadHost({ watched }));
  try {
    for (let i = 0; i < 30; i++) {
      const raw = await RawWorker.dial(server);
      raw.write(Buffer.from('GET / HTTP/1.0\r\n\r\n'.padEnd(64, 'x')));
      await until(() => raw.isClosed);
    }
    await until(() => lines.length >= 10);
    watched.nowMs += 60_000;
    await until(() => lines.some((line) => line.includes('left out')));
    expect(lines).toHaveLength(11);
    expect(lines[10]).toContain('left out 20 lines');
  } finally {
    await server.close();
  }
});
