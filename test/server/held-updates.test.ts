/** Cores that hold updates: pushes are combined and answered by their sum of squares, and take effect by `apply`. */
import { describe, expect, it, vi } from 'vitest';
import { Random } from '../../src/base/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import type { Region } from '../../src/memory/index.ts';
import { optimizerRule } from '../../src/server/index.ts';
import type { Combine, PushReply, RowsMode } from '../../src/server/index.ts';
import { Cores } from './cores.ts';
import type { CoresOptions } from './cores.ts';

const ADAM: OptimizerSpec = { name: 'adam', lr: 0.01 };
const MOMENTUM: OptimizerSpec = { name: 'sgd', lr: 0.1, momentum: 0.9, weightDecay: 0.01 };
const LENGTH = 100;
const ROWS = 9;
const ROW = 4;

interface Answers {
  readonly replies: PushReply[];
  readonly errors: Error[];
}

class HeldCores extends Cores {
  constructor(options: CoresOptions, spec: OptimizerSpec = ADAM) {
    super({ isHeld: true, ...options });
    this.setRule((kernels) => optimizerRule(kernels, spec));
  }

  dense(worker: number, step: number, gradient: Region<'float32'>, samples = 1, key = 'w'): Answers {
    const answers: Answers = { replies: [], errors: [] };
    for (const core of this.cores) {
      const push = { worker, key, step, gradient, samples };
      core.push(push, (reply) => answers.replies.push(reply), (error) => answers.errors.push(error)); // prettier-ignore
    }
    return answers;
  }

  rows(
    worker: number,
    step: number,
    indices: readonly number[],
    values: Float32Array,
    samples = 1,
    key = 't',
  ): Answers {
    const answers: Answers = { replies: [], errors: [] };
    const push = { worker, key, step, indices: this.whole(indices), rows: this.floats(values), samples };
    this.cores[0]!.pushRows(
      push,
      (reply) => answers.replies.push(reply),
      (error) => answers.errors.push(error),
    );
    return answers;
  }

  apply(worker: number, step: number, scale = 1, lr?: number): void {
    for (const core of this.cores) core.apply({ worker, step, scale, lr });
  }
}

const noise = (random: Random, length: number): Float32Array =>
  Float32Array.from({ length }, () => random.uniform() - 0.5);
const squares = (values: Iterable<number>): number => {
  let sum = 0;
  for (const value of values) sum += value * value;
  return sum;
};
const total = ({ replies }: Answers): number =>
  replies.reduce((sum, { sumOfSquares }) => sum + sumOfSquares!, 0);

describe.each<Combine>(['sum', 'mean'])('held updates, combined by %s', (combine) => {
  describe.each([[[1]], [[1, 1]], [[1, 3]], [[2, 2, 2]], [[1, 2, 5]]])('with samples %j', (samples) => {
    it.each([ADAM, MOMENTUM])('have the bits of updates that are not held, by $name', (spec) => {
      const seed = 17 + samples.length;
      const random = new Random(seed);
      const workers = samples.length;
      const held = new HeldCores({ workers, combine, cores: 2 }, spec);
      const plain = new HeldCores({ workers, combine, cores: 2, isHeld: false }, spec);
      const start = noise(random, LENGTH);
      const table = noise(random, ROWS * ROW);
      const values = [held, plain].map((cores) => [cores.open('w', start), cores.open('t', table, ROW)]);
      for (let step = 1; step <= 4; step++) {
        samples.forEach((count, worker) => {
          const gradient = noise(random, LENGTH);
          const indices = Array.from({ length: random.below(6) }, () => random.below(ROWS));
          const rows = noise(random, indices.length * ROW);
          for (const cores of [held, plain]) {
            cores.dense(worker, step, cores.floats(gradient), count);
            cores.rows(worker, step, indices, rows, count);
          }
        });
        for (let worker = 0; worker < workers; worker++) held.apply(worker, step);
        const [[w, t], [otherW, otherT]] = values as [Region<'float32'>[], Region<'float32'>[]];
        expect([...w!.view], `seed ${seed}`).toEqual([...otherW!.view]);
        expect([...t!.view], `seed ${seed}`).toEqual([...otherT!.view]);
      }
    });

    it('are answered by the sum of squares of what is combined, and change nothing', () => {
      const random = new Random(5);
      const cores = new HeldCores({ workers: samples.length, combine });
      const value = cores.open('w', new Float32Array(LENGTH).fill(1));
      const gradients = samples.map(() => noise(random, LENGTH));
      const answers = gradients.map((one, worker) =>
        cores.dense(worker, 1, cores.floats(one), samples[worker]),
      );
      const all = samples.reduce((sum, one) => sum + one);
      const weight = (worker: number) => (combine === 'sum' ? 1 : samples[worker]! / all);
      const combined = Array.from({ length: LENGTH }, (_, i) =>
        gradients.reduce((sum, one, worker) => sum + weight(worker) * one[i]!, 0),
      );
      for (const one of answers) {
        expect(one.replies.every(({ version }) => version === 0)).toBe(true);
        expect(total(one)).toBe(total(answers[0]!));
        expect(Math.abs(total(one) / squares(combined) - 1)).toBeLessThan(1e-6);
      }
      expect([...value.view]).toEqual(new Array(LENGTH).fill(1));
    });
  });
});

describe('a worker without samples', () => {
  it('counts as one that pushed, and weighs nothing', () => {
    for (const combine of ['sum', 'mean'] as const) {
      const cores = new HeldCores({ workers: 2, combine, cores: 1 }, { name: 'sgd', lr: 1 });
      const value = cores.open('w', new Float32Array(4));
      cores.dense(0, 1, cores.floats([1, 2, 3, 4]), 5);
      expect(total(cores.dense(1, 1, cores.floats([9, 9, 9, 9]), 0))).toBe(30);
      cores.apply(0, 1);
      expect([...value.view]).toEqual([-1, -2, -3, -4]);
    }
  });

  it('leaves zeros if nobody has samples, by which momentum goes on', () => {
    const cores = new HeldCores({ workers: 2, combine: 'mean' }, { name: 'sgd', lr: 1, momentum: 0.5 });
    const value = cores.open('w', new Float32Array(1));
    const table = cores.open('t', new Float32Array(ROWS * ROW), ROW);
    for (let step = 1; step <= 3; step++) {
      const samples = step === 1 ? 1 : 0;
      for (const worker of [0, 1]) {
        const { replies } = cores.dense(worker, step, cores.floats([8]), samples);
        if (step > 1) for (const { sumOfSquares } of replies) expect(sumOfSquares).toBe(0);
        cores.rows(worker, step, [2], new Float32Array(ROW).fill(8), samples);
      }
      cores.apply(1, step);
    }
    expect([...value.view]).toEqual([-8 - 4 - 2]);
    expect(table.view[2 * ROW]).toBe(-8);
  });

  it('is refused where updates are not held', () => {
    const cores = new HeldCores({ workers: 1, isHeld: false });
    cores.open('w', new Float32Array(4));
    expect(() => cores.dense(0, 1, cores.floats([1, 2, 3, 4]), 0)).toThrow(/0 samples/);
  });
});

describe.each([ADAM, MOMENTUM, { name: 'sgd', lr: 0.1 } as const])('exact rows with $name', (spec) => {
  it('get what dense updates give, whatever is pushed and whatever the rates are', () => {
    const seed = 23;
    const random = new Random(seed);
    const open = (rows: RowsMode) => {
      const cores = new HeldCores({ workers: 1, cores: 1, rows }, spec);
      return { cores, value: cores.open('t', new Float32Array(ROWS * ROW).fill(0.5), ROW) };
    };
    const [byRows, dense] = [open('exact'), open('lazy')];
    let version = 0;
    for (let step = 1; step <= 40; step++) {
      const indices = [...Array(ROWS).keys()].filter(() => random.below(4) === 0);
      const rows = noise(random, indices.length * ROW);
      const gradient = new Float32Array(ROWS * ROW);
      indices.forEach((row, i) => gradient.set(rows.subarray(i * ROW, (i + 1) * ROW), row * ROW));
      // Every third step nobody pushes the table: its gradient is zero.
      const isPushed = step % 3 > 0;
      if (isPushed) byRows.cores.rows(0, version + 1, indices, rows);
      else gradient.fill(0);
      dense.cores.dense(0, ++version, dense.cores.floats(gradient), 1, 't');
      const [scale, lr] = [random.uniform(), step % 5 === 0 ? undefined : 0.1 / step];
      byRows.cores.apply(0, step, scale, lr);
      dense.cores.apply(0, step, scale, lr);
    }
    byRows.cores.cores[0]!.pull(0, 't');
    expect([...byRows.value.view], `seed ${seed}`).toEqual([...dense.value.view]);
  });
});

it('rows that nobody looks at for more steps than rates are kept are those of dense updates', () => {
  const cores = new HeldCores({ workers: 1, cores: 1, rows: 'exact' });
  const dense = new HeldCores({ workers: 1, cores: 1 });
  const [value, other] = [cores.open('t', new Float32Array(8), ROW), dense.open('w', new Float32Array(8))];
  cores.rows(0, 1, [1], new Float32Array(ROW).fill(1));
  const [first, zeros] = [dense.floats([0, 0, 0, 0, 1, 1, 1, 1]), dense.floats(new Float32Array(8))];
  for (let step = 1; step <= 1100; step++) {
    dense.dense(0, step, step === 1 ? first : zeros);
    for (const one of [cores, dense]) one.apply(0, step, 1, 1 / step);
  }
  cores.cores[0]!.pull(0, 't');
  expect([...value.view]).toEqual([...other.view]);
});

describe('a held step', () => {
  const gradient = (cores: Cores, value = 1) => cores.floats(new Float32Array(4).fill(value));
  const open = (options: Partial<CoresOptions> = {}) => {
    const cores = new HeldCores({ workers: 2, cores: 1, ...options }, { name: 'sgd', lr: 1 });
    return { cores, value: cores.open('w', new Float32Array(4)) };
  };

  it('leaves keys alone that nobody pushed', () => {
    const { cores, value } = open({ workers: 1 });
    const other = cores.open('other', new Float32Array(4).fill(7));
    for (const step of [1, 2]) {
      cores.dense(0, step, gradient(cores));
      cores.apply(0, step, 0.5);
    }
    cores.dense(0, 1, gradient(cores), 1, 'other');
    cores.apply(0, 3);
    expect([value.view[0], other.view[0]]).toEqual([-1, 6]);
    expect(cores.cores[0]!.progressOf('other').version).toBe(1);
  });

  it('is done once, by the first word, and answers the others', () => {
    const { cores, value } = open();
    for (const worker of [0, 1]) cores.dense(worker, 1, gradient(cores));
    cores.apply(1, 1, 0.25, 2);
    cores.apply(0, 1, 0.25, 2);
    cores.apply(1, 1, 0.25, 2);
    expect(value.view[0]).toBe(-1);
  });

  it('is answered to a slow worker when a fast one has pushed the next already', () => {
    const { cores, value } = open();
    for (const worker of [0, 1]) cores.dense(worker, 1, gradient(cores));
    cores.apply(0, 1);
    cores.dense(0, 2, gradient(cores));
    cores.apply(1, 1);
    cores.dense(1, 2, gradient(cores));
    cores.apply(1, 2);
    expect(value.view[0]).toBe(-4);
  });

  it('is one update of a table with exact rows, however many workers ask for it', () => {
    const { cores } = open({ rows: 'exact' });
    cores.open('t', new Float32Array(ROWS * ROW), ROW);
    for (const worker of [0, 1, 1]) cores.apply(worker, 1);
    expect(cores.cores[0]!.progressOf('t').version).toBe(1);
  });

  it.each<[number, number | undefined, RegExp]>([
    [0.5, 2, /worker 0 .* scale 0.5 and learning rate 2, worker 1 with scale 0.25 and learning rate 2/],
    [0.25, 3, /learning rate 3, worker 1 .* learning rate 2/],
    [0.25, undefined, /the learning rate of the rule, worker 1 .* learning rate 2/],
  ])('names both if one applies with scale %s and rate %s', (scale, lr, message) => {
    const { cores, value } = open();
    for (const worker of [0, 1]) cores.dense(worker, 1, gradient(cores));
    cores.apply(1, 1, 0.25, 2);
    expect(() => cores.apply(0, 1, scale, lr)).toThrow(message);
    expect(value.view[0]).toBe(-1);
  });

  it('must be applied before the next push', () => {
    const { cores } = open();
    for (const worker of [0, 1]) cores.dense(worker, 1, gradient(cores));
    expect(() => cores.dense(0, 2, gradient(cores))).toThrow(
      /worker 0 .* step 2 of key 'w', whose step 1 is held; call apply/,
    );
    cores.apply(0, 1);
    cores.dense(0, 2, gradient(cores));
  });

  it('is not applied while somebody is missing', () => {
    const { cores, value } = open();
    cores.dense(0, 1, gradient(cores));
    expect(() => cores.apply(0, 1)).toThrow(/worker 0 .* key 'w' waits for the push of worker 1/);
    cores.dense(1, 1, gradient(cores));
    cores.apply(0, 1);
    expect(value.view[0]).toBe(-2);
  });

  it.each<[string, number, number, number | undefined, RegExp]>([
    ['a step too far', 2, 1, undefined, /step 2, expected step 1/],
    ['step 0', 0, 1, undefined, /step 0, expected step 1/],
    ['half a step', 0.5, 1, undefined, /step 0.5, expected/],
    ['no scale', 1, NaN, undefined, /finite/],
    ['an infinite rate', 1, 1, Infinity, /finite/],
  ])('is not applied by %s', (_what, step, scale, lr, message) => {
    const { cores } = open();
    expect(() => cores.apply(0, step, scale, lr)).toThrow(message);
    expect(() => cores.apply(9, 1)).toThrow(/worker 9 is not one/);
  });

  it('is answered again if it is pushed again: while it waits, while it is held, and afterwards', () => {
    const { cores, value } = open();
    const waiting = [cores.dense(0, 1, gradient(cores)), cores.dense(0, 1, gradient(cores, 9))];
    const last = cores.dense(1, 1, gradient(cores));
    const held = cores.dense(0, 1, gradient(cores, 9));
    cores.apply(0, 1);
    const applied = cores.dense(1, 1, gradient(cores, 9));
    const all = [...waiting, last, held, applied].flatMap(({ replies }) => replies);
    expect(all.map(({ sumOfSquares, duplicate, version }) => [sumOfSquares, duplicate, version])).toEqual([
      ...[[16, false, 0], [16, true, 0], [16, false, 0], [16, true, 0], [16, true, 1]], // prettier-ignore
    ]);
    expect(value.view[0]).toBe(-2);
  });

  it('outlives a worker that is counted out, and the next goes on without it', () => {
    const { cores, value } = open();
    for (const worker of [0, 1]) cores.dense(worker, 1, gradient(cores));
    cores.cores[0]!.release(1);
    cores.apply(0, 1);
    cores.dense(0, 2, gradient(cores));
    cores.apply(0, 2);
    expect(value.view[0]).toBe(-3);
  });

  it('is known to a newcomer, which counts on from there', () => {
    const { cores, value } = open();
    for (const worker of [0, 1]) cores.dense(worker, 1, gradient(cores));
    cores.apply(0, 1);
    const core = cores.cores[0]!;
    core.admit(2);
    expect([core.appliedBefore(0), core.appliedBefore(2)]).toEqual([0, 1]);
    for (const worker of [0, 1, 2]) cores.dense(worker, 2, gradient(cores));
    cores.apply(2, 2);
    expect(value.view[0]).toBe(-5);
  });

  it.each([
    [1000, 40],
    [3, 20_000],
    [20_000, 1],
  ])(
    // prettier-ignore
    'can be looked at by rows in any order, of a table of %i rows of %i',
    (rowCount, rowLength) => {
      const seed = 29;
      const random = new Random(seed);
      const { cores } = open({ combine: 'mean' });
      cores.open('t', new Float32Array(rowCount * rowLength), rowLength);
      const core = cores.cores[0]!;
      const expected = new Float32Array(rowCount * rowLength);
      for (const worker of [0, 1]) {
        const indices = [...Array(rowCount).keys()].filter(() => random.below(2) === 0);
        const values = noise(random, indices.length * rowLength);
        cores.rows(worker, 1, indices, values);
        indices.forEach((row, i) => {
          for (let j = 0; j < rowLength; j++) expected[row * rowLength + j]! += values[i * rowLength + j]!;
        });
      }
      const order = Array.from({ length: rowCount }, () => random.below(rowCount));
      const [inOrder, placed] = [0, 1].map(() => cores.floats(new Float32Array(expected.length)));
      core.pullHeldRows(0, 't', 1, cores.whole(order), inOrder!);
      const places = cores.whole(order.map((_, i) => rowCount - 1 - i));
      core.pullHeldRows(1, 't', 1, cores.whole(order), placed!, places);
      const rowsOf = (one: Float32Array, row: number) => one.subarray(row * rowLength, (row + 1) * rowLength);
      const isRight = order.every((row, i) => {
        const wanted = rowsOf(expected, row).map((value) => value / 2);
        const seen = [rowsOf(inOrder!.view, i), rowsOf(placed!.view, rowCount - 1 - i)];
        return seen.every((one) => one.every((value, j) => value === wanted[j]));
      });
      expect(isRight, `seed ${seed}`).toBe(true);
    },
  );

  it('can be looked at by short rows after very long ones', () => {
    const { cores } = open({ workers: 1 });
    const core = cores.cores[0]!;
    const [long, rowCount] = [40_000, 20_000];
    cores.open('long', new Float32Array(long), long);
    cores.open('short', new Float32Array(rowCount), 1);
    cores.rows(0, 1, [0], new Float32Array(long).fill(2), 1, 'long');
    const values = Float32Array.from({ length: rowCount }, (_, i) => i + 1);
    cores.rows(0, 1, [...values.keys()], values, 1, 'short');
    const [longRow, short] = [long, rowCount].map((length) => cores.floats(new Float32Array(length)));
    core.pullHeldRows(0, 'long', 1, cores.whole([0]), longRow!);
    core.pullHeldRows(0, 'short', 1, cores.whole([...values.keys()].reverse()), short!);
    expect(longRow!.view.every((value) => value === 2)).toBe(true);
    expect(short!.view).toEqual(values.reverse());
  });

  it('is shown through a little room of the tenant, whatever a row takes, and through none where no rows are', () => {
    const taken: number[] = [];
    const scratch = {
      allocate: (bytes: number) => {
        taken.push(bytes);
        return cores.space.allocate(bytes);
      },
    };
    const { cores } = open({ workers: 1, scratch });
    const core = cores.cores[0]!;
    const long = 2 ** 20;
    cores.open('long', new Float32Array(long), long);
    cores.rows(0, 1, [], new Float32Array(0), 1, 'long');
    const [row, none] = [cores.floats(new Float32Array(long)), cores.floats(new Float32Array(0))];
    const spied = vi.spyOn(cores.space, 'allocate');
    const before = taken.length;
    core.pullHeldRows(0, 'long', 1, cores.whole([]), none);
    expect(spied).not.toHaveBeenCalled();
    core.pullHeldRows(0, 'long', 1, cores.whole([0]), row);
    expect(spied.mock.calls.map(([bytes]) => bytes)).toEqual(taken.slice(before));
    expect(Math.max(...taken.slice(before))).toBeLessThan(long);
    spied.mockRestore();
  });

  it('is not shown to one that waits with the next push, nor after training went back', () => {
    const { cores } = open();
    const core = cores.cores[0]!;
    const into = gradient(cores);
    for (const worker of [0, 1]) cores.dense(worker, 1, gradient(cores, 3));
    cores.apply(0, 1);
    cores.dense(0, 2, gradient(cores));
    expect(() => core.pullHeld(0, 'w', 1, into)).toThrow(/worker 0 .* step 1 of key 'w', of which nothing/);
    core.pullHeld(1, 'w', 1, into);
    expect([...into.view]).toEqual([6, 6, 6, 6]);
    core.abandon(new Error('back') as never);
    expect(() => core.pullHeld(1, 'w', 1, into)).toThrow(/of which nothing is held/);
    expect(() => core.pullHeld(9, 'w', 1, into)).toThrow(/worker 9 is not one/);
  });

  it('is forgotten when training goes back, and steps count from 1', () => {
    const { cores, value } = open();
    for (const worker of [0, 1]) cores.dense(worker, 1, gradient(cores));
    cores.apply(0, 1);
    for (const worker of [0, 1]) cores.dense(worker, 2, gradient(cores, 9));
    const core = cores.cores[0]!;
    core.abandon(new Error('back') as never);
    core.restore('w', 0, {});
    value.view.fill(0);
    for (const worker of [0, 1]) cores.dense(worker, 1, gradient(cores));
    cores.apply(1, 1);
    expect(value.view[0]).toBe(-2);
  });

  it('fails for everybody if there is no memory for it', () => {
    const heldMemory = {
      allocate: () => {
        throw new Error('no memory');
      },
      free: () => undefined,
    };
    const { cores } = open({ heldMemory });
    const all = [0, 1].map((worker) => cores.dense(worker, 1, gradient(cores)));
    expect(all.map(({ errors }) => errors.map(({ message }) => message))).toEqual([
      ['no memory'],
      ['no memory'],
    ]);
  });

  it('whose values all are left out counts, and changes nothing', () => {
    const { cores, value } = open({ workers: 1, nonFinite: 'skip' });
    const { replies } = cores.dense(0, 1, gradient(cores, NaN));
    cores.apply(0, 1);
    expect(replies).toMatchObject([{ sumOfSquares: 0 }]);
    expect([value.view[0], cores.cores[0]!.progressOf('w').version]).toEqual([0, 1]);
  });

  it('gives its memory back, that of fewer rows too', () => {
    const taken = new Set<object>();
    const cores: HeldCores = new HeldCores({
      ...{ workers: 1, cores: 1 },
      heldMemory: {
        allocate: (bytes) => {
          const segment = cores.space.allocate(bytes);
          taken.add(segment);
          return segment;
        },
        free: (segment) => {
          expect(taken.delete(segment)).toBe(true);
          segment.close();
        },
      },
    });
    cores.open('w', new Float32Array(LENGTH));
    cores.open('t', new Float32Array(ROWS * ROW), ROW);
    [[1], [2, 3], [1, 2, 3, 4]].forEach((indices, i) => {
      cores.dense(0, i + 1, cores.floats(new Float32Array(LENGTH)));
      cores.rows(0, i + 1, indices, new Float32Array(indices.length * ROW));
      cores.apply(0, i + 1);
      expect(taken.size).toBe(2);
    });
    for (const core of cores.cores) core.close();
    expect(taken.size).toBe(0);
  });
});

it('updates are held in synchronous training only', () => {
  for (const kind of ['asynchronous', 'bounded', 'elastic'] as const) {
    const consistency = { kind, staleness: 1, alpha: 0.5 };
    expect(() => new HeldCores({ workers: 1, consistency })).toThrow(/held in .* training/);
  }
  const plain = new HeldCores({ workers: 1, isHeld: false });
  expect(() => plain.apply(0, 1)).toThrow(/not held/);
});
