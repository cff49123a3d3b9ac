/** What the trace of a run shows: every operation of every step by its name, in order, and no two at once in a lane. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { fit } from '../../src/runner/index.ts';
import type { OnConsistency, Workers } from '../../src/runner/index.ts';
import { STEP_OPERATIONS, type Operation } from '../../src/plan/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { programOf } from '../support/test-program.ts';
import { traced, type TracedOptions } from './traced.ts';
import { withoutWaits } from '../support/worker-output.ts';

const PROGRAM = fileURLToPath(new URL('./trace-program.ts', import.meta.url));
const STEPS = 4;
const folder = temporaryFolders();

interface Bar {
  readonly ph: string;
  readonly pid: number;
  readonly tid: number;
  readonly name: string;
  readonly cat: string;
  readonly ts: number;
  readonly dur: number;
  readonly args: { readonly step: number; readonly bytes?: number; readonly name?: string };
}

class TraceFile {
  readonly bars: readonly Bar[];
  readonly program: readonly Operation[];
  readonly #names: readonly Bar[];

  constructor(path: string) {
    const { traceEvents, otherData } = JSON.parse(readFileSync(path, 'utf8')) as {
      readonly traceEvents: Bar[];
      readonly otherData: { readonly program: readonly Operation[] };
    };
    this.program = otherData.program;
    this.bars = traceEvents.filter(({ ph }) => ph === 'X').sort((a, b) => a.ts - b.ts);
    this.#names = traceEvents.filter(({ name }) => name === 'thread_name');
  }

  computing(worker: number, step: number): string[] {
    return this.#of(worker, step, (lane) => lane === 'computing').map(({ name }) => name);
  }

  /** Those that are under way together come in any order. */
  messages(worker: number, step: number): Bar[] {
    return this.#of(worker, step, (lane) => lane.startsWith('communication'));
  }

  /** What the program has and a step does not show, and the other way round; idle time and what is done once are no operations. */
  differences(worker: number, step: number): string[] {
    const bars = this.#of(worker, step, () => true).filter(({ cat }) => !NO_OPERATIONS.has(cat));
    // The thread that computes shows that it waits for rows.
    const shown = new Set(bars.map(({ name }) => name).filter((name) => !/^pull( rows)?$/.test(name)));
    const due = this.program.filter(({ every }) => every === undefined).map(({ name }) => name);
    const all = new Set(this.program.map(({ name }) => name));
    return [
      ...due.filter((name) => !shown.has(name)).map((name) => `not shown: ${name}`),
      ...[...shown].filter((name) => !all.has(name)).map((name) => `not in the program: ${name}`),
    ];
  }

  overlaps(): string[] {
    const faults: string[] = [];
    const last = new Map<string, Bar>();
    for (const bar of this.bars) {
      const lane = `${bar.pid}/${bar.tid}`;
      const before = last.get(lane);
      if (before && before.ts + before.dur > bar.ts) faults.push(`${before.name} and ${bar.name} in ${lane}`);
      last.set(lane, bar);
    }
    return faults;
  }

  #of(worker: number, step: number, isIn: (lane: string) => boolean): Bar[] {
    const lanes = this.#names.filter(({ pid, args }) => pid === worker && isIn(args.name!));
    const tids = new Set(lanes.map(({ tid }) => tid));
    return this.bars.filter(({ pid, tid, args }) => pid === worker && args.step === step && tids.has(tid));
  }
}

function onWorkers(options: Omit<TracedOptions, 'trace' | 'on'> & { readonly on: Workers }): TraceFile {
  const trace = join(folder(), 'trace.json');
  const { status, stderr } = spawnSync(
    process.execPath,
    [...programOf(PROGRAM), JSON.stringify({ ...options, on: { workers: 2, ...options.on }, trace })],
    { encoding: 'utf8', timeout: 100_000 },
  );
  expect({ status, stderr: withoutWaits(stderr) }).toEqual({ status: 0, stderr: '' });
  return new TraceFile(trace);
}

const NO_OPERATIONS = new Set(['plan', 'compile', 'wait']);

/** Segments with all gradients apart, in the order of the backward pass. */
const SEGMENTS = [
  ...['output.w', 'output.b', 'first.w', 'first.b', 'embedding', 'norm.gamma', 'norm.beta'],
].map((name) => `backward ${name}`);
const isFirst = (step: number, ...names: string[]) => (step === 1 ? names : []);

describe('the trace of two workers', () => {
  it('by collectives has all operations of each step, in order, and its messages by what they carry', () => {
    const file = onWorkers({
      on: { strategy: 'collectives', merging: 'layer by layer' },
      ...{ sparseUpdates: 'lazy', hasAverage: true },
      ...{ compareEverySteps: 2, checkpointDirectory: folder(), overwrite: true },
    });
    expect(file.overlaps()).toEqual([]);
    for (const worker of [0, 1]) {
      for (let step = 1; step <= STEPS; step++) {
        expect(file.computing(worker, step)).toEqual([
          ...['load batch', ...isFirst(step, 'plan'), ...(step === 3 ? ['check'] : [])],
          ...[...isFirst(step, 'compile'), 'forward', ...SEGMENTS, 'wait'],
          // States travel with the first message, the norm needs all.
          ...['states', 'wait', 'norm', 'update', 'average'],
          ...(step === STEPS ? ['evaluate', ...(worker === 0 ? ['checkpoint'] : [])] : []),
        ]);
        expect(file.differences(worker, step)).toEqual([]);
        const messages = file.messages(worker, step);
        const [rows] = messages.splice(
          messages.findIndex(({ name }) => name === 'rows embedding'),
          1,
        );
        // For each row its number and 8 elements.
        expect(rows!.args.bytes! % (4 * 9)).toBe(0);
        expect(rows!.args.bytes).toBeGreaterThan(0);
        const bytes = Object.fromEntries(messages.map(({ name, args }) => [name, args.bytes]));
        expect(bytes).toEqual({
          // With the loss and two states before it.
          'allreduce output.w': 3 * 64 + 4 * 24,
          'allreduce output.b': 4 * 2,
          'allreduce first.w': 4 * 96,
          ...{ 'allreduce first.b': 48, 'allreduce norm.gamma': 48, 'allreduce norm.beta': 48 },
          'row counts': 8,
        });
      }
    }
    const words = new Set<string>(STEP_OPERATIONS);
    expect(file.bars.filter(({ cat }) => !words.has(cat))).toEqual([]);
  });

  it('names a segment of all gradients by the first and the last layer', () => {
    const file = onWorkers({ on: { strategy: 'collectives', merging: 'single' }, sparseUpdates: 'lazy' });
    const forwardAndBackward = ['forward', 'backward embedding..output'];
    expect(file.computing(1, 2)).toEqual([
      ...['load batch', ...forwardAndBackward, 'wait', 'states', 'wait', 'norm', 'update'],
    ]);
    expect(file.differences(1, 2)).toEqual([]);
    expect(file.messages(1, 2).map(({ name }) => name)).toContain('allreduce first..output');
    expect(file.overlaps()).toEqual([]);
  });

  it('with servers has what is pulled, pushed and applied', () => {
    const file = onWorkers({ on: { strategy: 'servers', merging: 'layer by layer' } });
    expect(file.overlaps()).toEqual([]);
    for (const worker of [0, 1]) {
      for (let step = 1; step <= STEPS; step++) {
        expect(file.computing(worker, step)).toEqual([
          ...['load batch', ...isFirst(step, 'plan'), 'pull rows'],
          ...[...isFirst(step, 'compile'), 'forward', ...SEGMENTS, 'wait'],
          ...['states', 'wait', 'norm', 'update', ...(step === STEPS ? ['evaluate'] : [])],
        ]);
        // The last step's evaluation fetches all parameters.
        if (step < STEPS) expect(file.differences(worker, step)).toEqual([]);
        const names = file.messages(worker, step).map(({ name }) => name);
        expect(names.filter((name) => !name.startsWith('pull embedding..')).sort()).toEqual(
          [
            ...['pull rows embedding', 'allreduce loss', 'push output.w', 'push output.b', 'push first.w'],
            ...['push first.b', 'push norm.gamma', 'push norm.beta', 'push embedding', 'apply'],
          ].sort(),
        );
        expect([names[0], names.at(step === STEPS ? names.indexOf('apply') : -1)]).toEqual([
          ...['pull rows embedding', 'apply'],
        ]);
        expect(names.includes('pull embedding..output')).toBe(step === STEPS);
      }
    }
  });
});

describe('clips, decays and averages are operations of the worker', () => {
  const given = { hasAverage: true, limitsAndDecays: true };
  const around = ['clip', 'weight decay', 'average average'];
  const onServers = (file: TraceFile) => file.program.find(({ kind }) => kind === 'apply')?.around ?? [];

  it('only by the norm where servers have all parameters', () => {
    const file = onWorkers({ ...given, on: { strategy: 'servers', merging: 'single' } });
    expect([...onServers(file)].sort()).toEqual([...around].sort());
    expect(file.computing(0, 2).slice(-2)).toEqual(['norm', 'update']);
    expect(file.differences(0, 2)).toEqual([]);
  });

  it('but for what only the table has where servers have the table', () => {
    const file = onWorkers({ ...given, on: { strategy: 'parallax', merging: 'single' } });
    expect([...onServers(file)].sort()).toEqual([...around].sort());
    expect(file.computing(0, 2).slice(-4)).toEqual(['clip', 'norm', 'update', 'average']);
    expect(file.differences(0, 2)).toEqual([]);
  });

  it('all of them by collectives', () => {
    const file = onWorkers({ ...given, on: { strategy: 'collectives', merging: 'single' } });
    expect(onServers(file)).toEqual([]);
    expect(file.computing(0, 2).slice(-5)).toEqual(['clip', 'norm', 'weight decay', 'update', 'average']);
  });
});

describe('the trace of clients', () => {
  /** The second client has two workers, 1 and 2. */
  const onClients = (consistency: OnConsistency, epochs: number) =>
    onWorkers({ on: { workers: 3, clients: 2, servers: 1, consistency }, epochs });
  const computed = ['forward', 'backward embedding..output'];

  it('in lock step has what is combined in the client and with servers, and then updates', () => {
    const file = onClients('synchronous', 1);
    expect(file.overlaps()).toEqual([]);
    for (const worker of [1, 2]) {
      for (let step = 2; step < STEPS; step++) {
        expect(file.computing(worker, step)).toEqual([
          ...['load batch', ...computed, 'wait', 'states', 'norm', 'update'],
        ]);
        expect(file.differences(worker, step)).toEqual([]);
      }
    }
    expect(file.program.map(({ name }) => name)).toContain('broadcast embedding..output');
  });

  it('whose servers update has what is pulled before, and clips before it pushes', () => {
    const file = onClients('asynchronous', 2);
    expect(file.overlaps()).toEqual([]);
    expect(file.computing(1, 3).filter((name) => name !== 'wait')).toEqual([
      ...['load batch', 'pull rows', ...computed, 'states', 'norm'],
    ]);
    expect(file.differences(1, 3)).toEqual([]);
  });

  it('that meet a centre show it in every other step, as asked for', () => {
    const file = onClients({ elastic: 0.5, everySteps: 2 }, 2);
    const meets = [1, 2, 3, 4].map((step) =>
      file.messages(1, step).some(({ name }) => name === 'elastic exchange'),
    );
    expect(meets).toEqual([false, true, false, true]);
    expect(file.differences(1, 3)).toEqual([]);
  });
});

it('the trace of one device has its operations, and changes no bit of the result', async () => {
  const train = async (trace?: string) => {
    const { model, options } = traced({ hasAverage: true, trace: '' });
    const result = await fit(model, { ...options, trace });
    const values = [...result.replica.memory.parameters.values()].map(({ view }) => [...view]);
    await result.close();
    return values;
  };
  const path = join(folder(), 'trace.json');
  expect(await train(path)).toEqual(await train());
  const file = new TraceFile(path);
  expect(file.overlaps()).toEqual([]);
  for (let step = 1; step <= STEPS; step++) {
    expect(file.computing(0, step)).toEqual([
      ...['load batch', ...isFirst(step, 'compile'), 'forward', 'backward embedding..output', 'states'],
      ...['norm', 'update', 'average', ...(step === STEPS ? ['evaluate'] : [])],
    ]);
    expect(file.messages(0, step)).toEqual([]);
    expect(file.differences(0, step)).toEqual([]);
  }
});
