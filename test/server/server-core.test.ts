/** What a server's cores do with pushes, whoever feeds them: the arithmetic that the field has agreed on, and faults. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { accumulationRule, optimizerRule } from '../../src/server/index.ts';
import type { Consistency, PushReply } from '../../src/server/index.ts';
import { mismatch, numbers } from '../kernels/arena.ts';
import { specOf } from '../support/optimizer-cases.ts';
import type { EasgdCase, OptimizerCase } from '../support/optimizer-cases.ts';
import { readVectors } from '../support/shared.ts';
import { Cores } from './cores.ts';

const LENGTHS = [1, 15, 16, 17, 100];
const filled = (length: number, value: number) => new Float32Array(length).fill(value);

describe('a synchronous server', () => {
  it.each([1, 2, 3, 4, 5, 6, 7, 8])('adds what %i workers push, and updates once a step', (workers) => {
    const rate = 2;
    const rounds = 3;
    for (const length of LENGTHS) {
      const server = new Cores({ workers });
      server.setRule((kernels) => accumulationRule(kernels, rate));
      const value = server.open('w', filled(length, 1));
      for (let i = 1; i <= rounds; i++) {
        // The last worker comes first: the order must not matter.
        for (let worker = workers - 1; worker >= 0; worker--) {
          const replies = server.push(worker, 'w', i, server.floats(filled(length, worker + 1)));
          expect(replies).toHaveLength(worker === 0 ? 3 : 0);
        }
        const wanted = (((workers + 1) * workers * rate) / 2) * i + 1;
        expect([...value.view]).toEqual([...filled(length, wanted)]);
      }
    }
  });

  it('gives the same bits whoever comes first', () => {
    const workers = 5;
    const random = new Random(7);
    const gradients = Array.from({ length: workers }, () =>
      Float32Array.from({ length: 50 }, () => random.normal() * 1e3 ** random.uniform()),
    );
    const results = [
      [0, 1, 2, 3, 4],
      [4, 3, 2, 1, 0],
      [2, 0, 4, 1, 3],
    ].map((order) => {
      const server = new Cores({ workers });
      const value = server.open('w', filled(50, 0));
      for (const worker of order) server.push(worker, 'w', 1, server.floats(gradients[worker]!));
      return [...value.view];
    });
    expect(results[1]).toEqual(results[0]);
    expect(results[2]).toEqual(results[0]);
  });

  it('weighs averages by samples', () => {
    const server = new Cores({ workers: 3, combine: 'mean' });
    const value = server.open('w', filled(20, 0));
    [10, 30, 60].forEach((samples, worker) =>
      server.push(worker, 'w', 1, server.floats(filled(20, worker + 1)), samples),
    );
    for (const element of value.view) expect(element).toBeCloseTo((10 + 60 + 180) / 100, 5);
    for (let worker = 0; worker < 3; worker++) server.push(worker, 'w', 2, server.floats(filled(20, 3)), 7);
    for (const element of value.view) expect(element).toBeCloseTo(2.5 + 3, 5);
  });

  it.each([
    ['sum', [1, 1, 1]],
    ['sum', [1, 2, 5]],
    ['mean', [1]],
    ['mean', [1, 1, 1]],
    ['mean', [1, 2, 5]],
    ['mean', [3, 3, 3, 3, 3, 3, 3, 3, 3, 3]],
  ] as const)('gives the same %s of pushes with samples %j wide as tall', (combine, samples) => {
    const [tall, wide] = (['tall', 'wide'] as const).map((aggregation) => {
      const server = new Cores({ workers: samples.length, combine, aggregation });
      const value = server.open('w', filled(50, 0));
      samples.forEach((count, worker) =>
        server.push(worker, 'w', 1, server.floats(filled(50, worker + 1)), count),
      );
      return [...value.view];
    });
    const total = samples.reduce<number>((sum, count) => sum + count, 0);
    const weight = (count: number) => (combine === 'sum' ? 1 : count / total);
    const wanted = samples.reduce<number>((sum, count, i) => sum + weight(count) * (i + 1), 0);
    for (const element of wide!) expect(element).toBeCloseTo(wanted, 5);
    expect(wide).toEqual(tall);
  });

  it('takes a push once, however often it is sent, and repeats the reply', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(2), { minLength: 0, maxLength: 40 }), (retries) => {
        const server = new Cores({ workers: 3, cores: 1 });
        const value = server.open('w', [0]);
        const gradients = [1, 10, 100].map((one) => server.floats([one]));
        const steps = [1, 1, 1];
        const replies: PushReply[][] = [[], [], []];
        const send = (worker: number) =>
          replies[worker]!.push(...server.push(worker, 'w', steps[worker]!, gradients[worker]!));
        for (let round = 1; round <= 3; round++) {
          for (let worker = 0; worker < 3; worker++) {
            steps[worker] = round;
            send(worker);
            for (const again of retries) if (again <= worker) send(again);
          }
          expect(value.view[0]).toBe(111 * round);
        }
        expect(replies[2]!.filter(({ duplicate }) => !duplicate).map(({ version }) => version)).toEqual([
          1, 2, 3,
        ]);
      }),
      { numRuns: 50 },
    );
  });

  it('goes on without a worker that is gone, and with a new one from the next step on', () => {
    const server = new Cores({ workers: 3, cores: 1 });
    const value = server.open('w', [0]);
    const [core] = server.cores;
    server.push(0, 'w', 1, server.floats([1]));
    server.push(1, 'w', 1, server.floats([10]));
    core!.release(2);
    expect(value.view[0]).toBe(11);
    core!.admit(7);
    expect(core!.pull(7, 'w').version).toBe(1);
    server.push(0, 'w', 2, server.floats([1]));
    server.push(1, 'w', 2, server.floats([10]));
    expect(value.view[0]).toBe(11);
    server.push(7, 'w', 2, server.floats([100]));
    expect(value.view[0]).toBe(122);
  });

  it('keeps one repeated request of each push, and refuses the one before', () => {
    const server = new Cores({ workers: 2, cores: 1 });
    const value = server.open('w', [0]);
    const gradient = server.floats([1]);
    const heard: string[] = [];
    for (const name of ['first', 'second', 'third']) {
      server.cores[0]!.push(
        { worker: 0, key: 'w', step: 1, gradient },
        ({ duplicate }) => heard.push(`${name} ${duplicate ? 'again' : 'taken'}`),
        ({ code }) => heard.push(`${name} ${code}`),
      );
    }
    expect(heard).toEqual(['second INVALID_ARGUMENT']);
    server.push(1, 'w', 1, server.floats([10]));
    expect(heard.slice(1)).toEqual(['first taken', 'third again']);
    expect(value.view[0]).toBe(11);
  });

  it('drops what a worker pushed of a step that it did not live to see', () => {
    const server = new Cores({ workers: 2, cores: 1 });
    const value = server.open('w', [0]);
    server.push(1, 'w', 1, server.floats([10]));
    server.cores[0]!.release(1);
    expect(value.view[0]).toBe(0);
    server.push(0, 'w', 1, server.floats([1]));
    expect(value.view[0]).toBe(1);
  });
});

describe('an asynchronous server', () => {
  it('applies each push at once and counts staleness', () => {
    const server = new Cores({ workers: 2, cores: 1, consistency: { kind: 'asynchronous' } });
    const value = server.open('w', filled(4, 0));
    const core = server.cores[0]!;
    const v = server.floats([1, 2, 3, 4]);
    for (let i = 1; i <= 50; i++) expect(server.push(0, 'w', i, v)).toHaveLength(1);
    expect([...value.view]).toEqual([50, 100, 150, 200]);
    core.pull(1, 'w');
    for (let i = 51; i <= 100; i++) {
      server.push(0, 'w', i, v);
      core.pull(0, 'w');
    }
    expect([...value.view]).toEqual([100, 200, 300, 400]);
    expect(server.push(1, 'w', 1, v)).toEqual([{ version: 101, staleness: 50, duplicate: false }]);
    expect(server.push(1, 'w', 1, v)).toMatchObject([{ duplicate: true }]);
    expect(value.view[0]).toBe(101);
  });

  it('answers a push that is repeated when its worker may go on, and no sooner', () => {
    const server = new Cores({ workers: 2, cores: 1, consistency: { kind: 'bounded', staleness: 1 } });
    server.open('w', [0]);
    const gradient = server.floats([1]);
    const push = (worker: number, step: number) => {
      const answers: boolean[] = [];
      server.cores[0]!.push({ worker, key: 'w', step, gradient }, ({ duplicate }) => answers.push(duplicate));
      return answers;
    };
    expect(push(0, 1)).toEqual([false]);
    const first = push(0, 2);
    const repeated = push(0, 2);
    // Whoever asked before has lost its connection.
    expect([first, repeated]).toEqual([[false], []]);
    expect(push(1, 1)).toEqual([false]);
    expect([first, repeated]).toEqual([[false], [true]]);
  });

  it('answers a push that is repeated by a worker that was counted out meanwhile', () => {
    const server = new Cores({ workers: 1, cores: 1, consistency: { kind: 'bounded', staleness: 1 } });
    server.open('w', [0]);
    const [core] = server.cores;
    const gradient = server.floats([1]);
    for (const step of [1, 2, 3]) expect(server.push(0, 'w', step, gradient)).toHaveLength(1);
    core!.release(0);
    core!.admit(0);
    expect(server.push(0, 'w', 3, gradient)).toMatchObject([{ duplicate: true }]);
  });

  it('lets nobody get further ahead than the bound, and everybody in the end', () => {
    fc.assert(
      fc.property(fc.integer({ min: 2, max: 4 }), fc.nat(3), fc.integer(), (workers, staleness, seed) => {
        const random = new Random(seed);
        const consistency: Consistency = { kind: 'bounded', staleness };
        const server = new Cores({ workers, cores: 1, consistency });
        const value = server.open('w', [0]);
        const one = server.floats([1]);
        const steps = Array.from({ length: workers }, () => 0);
        const free = steps.map(() => true);
        const goal = 8;
        while (steps.some((step) => step < goal)) {
          const able = steps.flatMap((step, worker) => (free[worker] && step < goal ? [worker] : []));
          expect(able.length).toBeGreaterThan(0);
          const worker = able[Math.floor(random.uniform() * able.length)]!;
          steps[worker]!++;
          free[worker] = false;
          server.cores[0]!.push({ worker, key: 'w', step: steps[worker]!, gradient: one }, () => {
            free[worker] = true;
          });
          const slowest = Math.min(...steps);
          steps.forEach((step, other) =>
            expect(free[other] ? step - slowest : 0).toBeLessThanOrEqual(staleness),
          );
        }
        expect(value.view[0]).toBe(goal * workers);
      }),
      { numRuns: 100 },
    );
  });
});

describe('the oracle vectors of optimizers', () => {
  const cases = readVectors<OptimizerCase>('optimizers.json', ({ kind }) => kind === 'optimizer');
  it.each(cases)('$name holds across the borders of chunks and cores', (one) => {
    const server = new Cores({ workers: 1, cores: 3, chunkLength: 5 });
    server.setRule((kernels) => optimizerRule(kernels, specOf(one)));
    const values = new Map(one.params.map(({ name, data }) => [name, server.open(name, numbers(data))]));
    one.grads.forEach((gradients, i) => {
      for (const core of server.cores) core.setLearningRate(one.lr_per_step?.[i]);
      for (const [name, value] of values) {
        server.push(0, name, i + 1, server.floats(numbers(gradients[name]!)));
        expect(mismatch(value.view, numbers(one.params_after[i]![name]!), one.tolerance)).toBeUndefined();
      }
    });
  });
});

describe('an elastic server', () => {
  const cases = readVectors<EasgdCase>('optimizers.json', ({ kind }) => kind === 'easgd');
  it.each(cases)('$name moves centre and worker towards each other', (one) => {
    const consistency: Consistency = { kind: 'elastic', alpha: one.alpha };
    const server = new Cores({ workers: one.workers.length, cores: 2, chunkLength: 4, consistency });
    const centre = server.open('w', numbers(one.centre));
    const workers = one.workers.map((values) => server.floats(numbers(values)));
    const steps = workers.map(() => 0);
    for (const { worker, local_update, worker_after, centre_after } of one.exchanges) {
      const weights = workers[worker]!;
      numbers(local_update).forEach((by, i) => (weights.view[i] = weights.view[i]! + by));
      server.push(worker, 'w', ++steps[worker]!, weights);
      expect(mismatch(weights.view, numbers(worker_after), one.tolerance)).toBeUndefined();
      expect(mismatch(centre.view, numbers(centre_after), one.tolerance)).toBeUndefined();
    }
  });
});

it.each([0, -0.5, 1.001, NaN])('refuses an elastic server with alpha %d, and says what is legal', (alpha) => {
  expect(() => new Cores({ workers: 1, consistency: { kind: 'elastic', alpha } })).toThrow(
    expect.objectContaining({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('at most 1') as string,
    }),
  );
});

describe('rows of a table', () => {
  const rowLength = 3;
  const tableRows = 10;
  const pushes = [
    { indices: [7, 1, 7], rows: [1, 2, 3, 4, 5, 6, 10, 20, 30] },
    { indices: [1, 0], rows: [100, 200, 300, 7, 8, 9] },
  ];
  const dense = ({ indices, rows }: (typeof pushes)[number]) => {
    const gradient = new Float32Array(tableRows * rowLength);
    indices.forEach((index, i) => {
      for (let k = 0; k < rowLength; k++) gradient[index * rowLength + k]! += rows[i * rowLength + k]!;
    });
    return gradient;
  };

  it('give what the dense gradient gives, where a rule leaves elements without a gradient alone', () => {
    const values = Float32Array.from({ length: tableRows * rowLength }, (_, i) => i / 7);
    const results = [true, false].map((byRows) => {
      const server = new Cores({ workers: 2, cores: 1, combine: 'mean' });
      server.setRule((kernels) => optimizerRule(kernels, { name: 'adagrad', lr: 0.5 }));
      const value = server.open('table', values, rowLength);
      for (let step = 1; step <= 3; step++) {
        pushes.forEach((push, worker) => {
          const samples = worker + 1;
          if (!byRows) return server.push(worker, 'table', step, server.floats(dense(push)), samples);
          const rows = { indices: server.whole(push.indices), rows: server.floats(push.rows) };
          return server.cores[0]!.pushRows({ worker, key: 'table', step, samples, ...rows }, () => undefined);
        });
      }
      return value.view;
    });
    expect(mismatch(results[0]!, results[1]!, { rtol: 1e-5, atol: 1e-6 })).toBeUndefined();
  });

  it('are the only ones that are updated, also where the rule has momentum', () => {
    const server = new Cores({ workers: 1, cores: 1 });
    server.setRule((kernels) => optimizerRule(kernels, { name: 'sgd', lr: 1, momentum: 0.5 }));
    const value = server.open('table', filled(tableRows * rowLength, 0), rowLength);
    const push = (step: number, index: number) => {
      const rows = { indices: server.whole([index]), rows: server.floats([1, 1, 1]) };
      server.cores[0]!.pushRows({ worker: 0, key: 'table', step, ...rows }, () => undefined);
    };
    push(1, 4);
    push(2, 5);
    push(3, 4);
    // Row 4 kept its buffer of 1 while row 5 was updated: 1, then 0.5 * 1 + 1.
    expect([...value.view.subarray(12, 15)]).toEqual([-2.5, -2.5, -2.5]);
    expect(value.view.filter((element) => element !== 0)).toHaveLength(6);
  });

  it('are pulled in the order that is asked for', () => {
    const server = new Cores({ workers: 1, cores: 1 });
    server.open(
      'table',
      Float32Array.from({ length: 6 }, (_, i) => i),
      2,
    );
    const into = server.floats(filled(6, 0));
    server.cores[0]!.pullRows(0, 'table', server.whole([2, 0, 2]), into);
    expect([...into.view]).toEqual([4, 5, 0, 1, 4, 5]);
  });
});

describe('faulty pushes', () => {
  const open = (options = {}) => {
    const server = new Cores({ workers: 2, cores: 1, ...options });
    const value = server.open('w', filled(4, 1));
    server.open('table', filled(6, 0), 2);
    const push = (values: number[], step = 1, key = 'w') => server.push(0, key, step, server.floats(values));
    return { server, value, push };
  };

  it.each([
    ['a wrong length', () => open().push([1, 2]), 'SHAPE_MISMATCH', /worker 0 .*'w', which has 4/],
    ['an unknown key', () => open().push([1], 1, 'x'), 'INVALID_ARGUMENT', /worker 0 used key 'x'/],
    ['a step too far', () => open().push([1, 1, 1, 1], 3), 'INVALID_ARGUMENT', /step 3 .*expected step 1/],
    ['a NaN', () => open().push([1, 1, NaN, 1]), 'NOT_A_NUMBER', /worker 0 pushed NaN to key 'w' in step 1/],
    ['a second opening', () => open().server.open('w', [1]), 'INVALID_ARGUMENT', /'w' is there already/],
    [
      'a worker that is none',
      () => open().server.push(9, 'w', 1, open().value),
      'INVALID_ARGUMENT',
      /worker 9 is not/,
    ],
    [
      'a row outside',
      () => {
        const { server } = open();
        const rows = { indices: server.whole([0, 3]), rows: server.floats(filled(4, 1)) };
        server.cores[0]!.pushRows({ worker: 1, key: 'table', step: 1, ...rows }, () => undefined);
      },
      'OUT_OF_BOUNDS',
      /worker 1 named row 3 of key 'table', which has 3/,
    ],
    [
      'rows of what is no table',
      () => {
        const { server } = open();
        const rows = { indices: server.whole([0]), rows: server.floats([1, 1]) };
        server.cores[0]!.pushRows({ worker: 1, key: 'w', step: 1, ...rows }, () => undefined);
      },
      'INVALID_ARGUMENT',
      /'w', which is no table/,
    ],
    [
      'rows where another pushed a whole gradient',
      () => {
        const { server } = open();
        server.push(0, 'table', 1, server.floats(filled(6, 1)));
        const rows = { indices: server.whole([0]), rows: server.floats([1, 1]) };
        server.cores[0]!.pushRows({ worker: 1, key: 'table', step: 1, ...rows }, () => undefined);
      },
      'SHAPE_MISMATCH',
      /worker 1 pushed rows .* worker 0 a whole gradient/,
    ],
  ])('%s is an error that names who did what, and changes nothing', (_what, act, code, message) => {
    expect(act).toThrow(expect.objectContaining({ code }));
    expect(act).toThrow(message);
  });

  it('are skipped and counted where that is asked for', () => {
    const { server, value, push } = open({ nonFinite: 'skip' });
    push([1, Infinity, 1, 1]);
    const replies = server.push(1, 'w', 1, server.floats([1, 2, 3, 4]));
    expect([...value.view]).toEqual([2, 3, 4, 5]);
    expect(replies).toMatchObject([{ version: 1 }]);
    expect(server.cores[0]!.skipped).toBe(1);
  });
});
