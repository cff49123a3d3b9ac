/** `fit` by learners, as a script that its users write: started again for each, with events, result and errors as with workers. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { fit, getRunner, type FitEvent, type FitResult } from '../../src/runner/index.ts';
import { programOf } from '../support/test-program.ts';
import { segmentFiles } from '../support/segment-files.ts';
import { circlesModel, circlesRun } from './circles.ts';

const path = (name: string) => fileURLToPath(new URL(name, import.meta.url));

describe.skipIf(!hasSharedMemory())('a script in TypeScript', () => {
  it('trains by learners with closures and data in memory; another task in it is refused by name', () => {
    const program = ['--import', import.meta.resolve('tsx'), path('./fit-learners-program.ts')];
    const { stdout, stderr, pid } = spawnSync(process.execPath, program, {
      ...{ encoding: 'utf8', timeout: 150_000 },
    });
    expect(stderr).toBe('');
    const { results, events, begun } = JSON.parse(stdout) as {
      results: (Partial<FitResult> & { code?: string; message?: string })[];
      events: FitEvent[];
      begun: number;
    };
    const [first, second, other, workers] = results;
    expect(begun).toBe(4);
    const counts = { count: 2, replacements: 0, restarts: 0 };
    expect(first).toMatchObject({ steps: 23, finished: true, workers: 1, learners: counts });
    expect(second).toMatchObject({ steps: 54, finished: true, learners: counts });
    expect(second!.evaluation!.loss).toBeGreaterThan(0);
    const told = events.map((event) => ('step' in event ? [event.type, event.step] : [event.type]));
    expect(told).toEqual([
      ...[
        ['started', 0],
        ['epoch', 18],
        ['epoch', 23],
      ],
      ...[
        ['started', 0],
        ['epoch', 18],
        ['epoch', 36],
        ['epoch', 54],
      ],
    ]);
    expect(other).toMatchObject({ code: 'INVALID_ARGUMENT' });
    expect(other!.message).toMatch(/has started learners for another model, other data or other settings/);
    expect(workers!.message).toMatch(/has started learners, and now asks for workers/);
    expect(segmentFiles().filter((name) => name.includes(`learners-${pid}-`))).toEqual([]);
  }, 160_000);

  it('that comes to workers in a process that was started as a learner fails by name', () => {
    const options = JSON.stringify({ on: { workers: 2 } });
    const program = [...programOf(path('./fit-workers-program.ts')), options];
    const { status, stderr } = spawnSync(process.execPath, program, {
      ...{ encoding: 'utf8', timeout: 100_000, input: '{"learner":{}}\n' },
      env: { ...process.env, TRIBUTARY_WORKER: '1' },
    });
    expect(status).not.toBe(0);
    expect(stderr).toMatch(/started as a learner, and comes to a call for workers first/);
  }, 110_000);
});

describe('learners', () => {
  it.each([
    [{ trace: 'trace.json' }, { learners: 2 }, /trace is of the steps of workers.*leave out trace/],
    [{}, 'auto', /learners are 'auto', which only tributary train finds out; give their number/],
    [{}, { learners: 2, stallMs: 0 }, /stallMs is 0; give a number of milliseconds/],
  ] as const)('with %j and %j are refused before anything starts', async (options, on, message) => {
    const events: FitEvent[] = [];
    const failing = fit(circlesModel(), {
      ...{ ...circlesRun, ...options, on },
      onEvent: (event) => events.push(event),
    });
    await expect(failing).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
    await expect(failing).rejects.toThrow(message);
    expect(events).toEqual([]);
  });

  it('are refused by getRunner, which makes steps', async () => {
    const { optimizer } = circlesRun;
    const failing = getRunner(circlesModel(), { optimizer, on: { learners: 2 } });
    await expect(failing).rejects.toThrow(/on asks for learners, which make none together; .* or use fit/);
  });
});
