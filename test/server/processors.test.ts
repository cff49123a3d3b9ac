/**
 * Which processors cores get, what is refused, and where the threads of a pinned server really run.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { ParameterServer } from '../../src/server/index.ts';
import { processorsFor, readProcessors, usableProcessors } from '../../src/server/processors.ts';
import { systemServerHost } from '../../src/server/server-host.ts';
import { until } from './raw-worker.ts';

describe('the processors of cores', () => {
  it('are those that are named, one for each core, or any', () => {
    expect(processorsFor(undefined, 2, [0, 1])).toBeUndefined();
    expect(processorsFor(false, 2, [0, 1])).toBeUndefined();
    expect(processorsFor(true, 2, [3, 5, 7])).toEqual([3, 5]);
    expect(processorsFor([7, 3], 2, [3, 5, 7])).toEqual([7, 3]);
  });

  it.each([
    ['more cores than processors', true, 3, '3 cores cannot each have a processor of their own'],
    ['too few', [0], 2, '1 processor for 2 cores; name one for each core'],
    ['too many', [0, 1], 1, '2 processors for 1 core; name one for each core'],
    ['one twice', [1, 1], 2, 'processor 1 is named twice'],
    [
      'one that is not there',
      [0, 64],
      2,
      'core 1 cannot be pinned to processor 64: this process may use 0, 1',
    ],
  ] as const)('are refused where there are %s', (_what, pinned, cores, fault) => {
    expect(() => processorsFor(pinned, cores, [0, 1])).toThrow(
      expect.objectContaining({
        code: 'INVALID_ARGUMENT',
        message: expect.stringContaining(fault) as string,
      }),
    );
  });

  it('are read from a list', () => {
    expect(readProcessors('0,2-4, 9')).toEqual([0, 2, 3, 4, 9]);
    for (const wrong of ['', 'one', '3-1', '0,', '-1', '1.5', '99999', '0--2']) {
      expect(readProcessors(wrong), wrong).toBeUndefined();
    }
  });

  it('that this process may use are there', () => {
    expect(usableProcessors().length).toBeGreaterThan(0);
  });
});

describe.skipIf(!hasSharedMemory() || process.platform !== 'linux')('a pinned server', () => {
  const pinnedThreads = (): string[] =>
    readdirSync('/proc/self/task').map(
      (task) =>
        /Cpus_allowed_list:\s*(\S+)/.exec(readFileSync(`/proc/self/task/${task}/status`, 'utf8'))![1]!,
    );

  it('has each core on its processor, and nothing else', async () => {
    const usable = usableProcessors();
    const pinned = usable.slice(0, 2).reverse();
    const before = pinnedThreads();
    const server = await ParameterServer.start({ cores: pinned.length, pinned });
    // Where there is one processor only, all threads are on it.
    const more = (processor: number) => {
      const count = (threads: string[]) => threads.filter((list) => list === String(processor)).length;
      return count(pinnedThreads()) - count(before);
    };
    await until(() => pinned.every((processor) => more(processor) >= 1));
    if (usable.length > 1) expect(pinned.map(more)).toEqual(pinned.map(() => 1));
    await server.close();
  });

  it('says so where the kernel refuses at last', async () => {
    const lines: string[] = [];
    const server = await ParameterServer.start(
      { pinned: true, log: (line) => lines.push(line) },
      {
        ...systemServerHost,
        get libc() {
          return systemServerHost.libc;
        },
        // A processor that went away between the check and the start.
        startCore: (memory, options) => systemServerHost.startCore(memory, { ...options, processor: 1023 }),
      },
    );
    await until(() => lines.length > 0);
    expect(lines[0]).toMatch(/^core 0 could not be pinned to processor 1023 \(EINVAL\) and runs anywhere$/);
    await server.close();
  });
});
