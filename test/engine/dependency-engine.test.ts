import { describe, expect, it } from 'vitest';
import { UsageError } from '../../src/base/index.ts';
import { DependencyEngine } from '../../src/engine/index.ts';
import { ControlledOperations, settled } from './controlled-operations.ts';

function setUp(concurrency?: number) {
  const engine = new DependencyEngine({ concurrency });
  return { engine, operations: new ControlledOperations(engine) };
}

describe('operations', () => {
  it('give their result, and begin within the push if nothing is in their way', async () => {
    const engine = new DependencyEngine();
    let b = 0;
    const pushed = engine.push({ name: 'b = 1', mutates: ['b'], run: () => Promise.resolve((b = 1)) });
    expect(b).toBe(1);
    const a = engine.push({
      name: 'a = b + 1',
      reads: ['b'],
      mutates: ['a'],
      run: () => Promise.resolve(b + 1),
    });
    expect(await Promise.all([pushed, a])).toEqual([1, 2]);
  });

  it('that read the same variable overlap', async () => {
    const { operations } = setUp();
    const all = [operations.push('r1', { reads: ['x'] }), operations.push('r2', { reads: ['x', 'y'] })];
    expect(operations.begun).toEqual(['r1', 'r2']);
    await operations.endAll();
    await Promise.all(all);
  });

  it('that mutate a variable exclude earlier and later ones that use it, and nobody else', async () => {
    const { operations } = setUp();
    const all = [
      operations.push('r1', { reads: ['x'] }),
      operations.push('r2', { reads: ['x'] }),
      operations.push('w', { mutates: ['x'] }),
      operations.push('r3', { reads: ['x'] }),
      operations.push('w2', { mutates: ['x'] }),
      operations.push('other', { reads: ['y'], mutates: ['z'] }),
    ];
    expect(operations.begun).toEqual(['r1', 'r2', 'other']);
    await operations.end('r2');
    expect(operations.begun).toHaveLength(3);
    await operations.end('r1');
    expect(operations.begun.slice(3)).toEqual(['w']);
    await operations.end('w');
    expect(operations.begun.slice(4)).toEqual(['r3']);
    await operations.end('r3');
    expect(operations.begun.slice(5)).toEqual(['w2']);
    await operations.endAll();
    await Promise.all(all);
  });

  it('that read and mutate one variable, or name one twice, do not wait for themselves', async () => {
    const { engine, operations } = setUp();
    const all = [
      operations.push('twice', { reads: ['x', 'x', 'y'], mutates: ['x', 'x'] }),
      operations.push('r', { reads: ['x', 'y'] }),
    ];
    expect(operations.begun).toEqual(['twice']);
    await operations.end('twice');
    expect(operations.begun).toEqual(['twice', 'r']);
    await operations.endAll();
    await Promise.all(all);
    expect(engine.size).toBe(0);
  });

  it('may push others while they begin: those come after all that were ready', async () => {
    const engine = new DependencyEngine();
    const order: string[] = [];
    const inner: Promise<void>[] = [];
    const note = (name: string) => () => Promise.resolve(void order.push(name));
    const outer = engine.push({
      name: 'outer',
      mutates: ['x'],
      run: async () => {
        order.push('outer begins');
        inner.push(engine.push({ name: 'free', run: note('free') }));
        inner.push(engine.push({ name: 'conflicting', reads: ['x'], run: note('conflicting') }));
        order.push('outer goes on');
        await settled();
        order.push('outer ends');
      },
    });
    await outer;
    await Promise.all(inner);
    expect(order).toEqual(['outer begins', 'outer goes on', 'free', 'outer ends', 'conflicting']);
  });
});

describe('with limited concurrency', () => {
  it('ready operations begin by priority, then by push', async () => {
    const { operations } = setUp(1);
    const all = [
      operations.push('first'),
      operations.push('layer 3', { priority: -3 }),
      operations.push('layer 1', { priority: -1 }),
      operations.push('default'),
      operations.push('layer 1 again', { priority: -1 }),
      operations.push('urgent', { priority: Infinity }),
    ];
    await operations.endAll();
    await Promise.all(all);
    expect(operations.begun).toEqual(['first', 'urgent', 'default', 'layer 1', 'layer 1 again', 'layer 3']);
  });

  it('a priority never goes before a conflict', async () => {
    const { operations } = setUp(1);
    const all = [
      operations.push('w', { mutates: ['x'] }),
      operations.push('low', { priority: -1 }),
      operations.push('w2', { mutates: ['y'], priority: -2 }),
      operations.push('high', { reads: ['y'], priority: 9 }),
    ];
    await operations.endAll();
    await Promise.all(all);
    expect(operations.begun).toEqual(['w', 'low', 'w2', 'high']);
  });
});

describe('a lane', () => {
  it('begins its operations in push order whatever is ready first, and lets them overlap', async () => {
    const { engine, operations } = setUp();
    const lane = { inOrder: 'collectives' };
    const all = [
      operations.push('backward', { mutates: ['g1'] }),
      operations.push('allreduce 1', { reads: ['g1'], ...lane }),
      operations.push('allreduce 2', { reads: ['g2'], priority: 5, ...lane }),
      operations.push('elsewhere', { inOrder: 'other' }),
    ];
    expect(operations.begun).toEqual(['backward', 'elsewhere']);
    await operations.end('backward');
    expect(operations.begun.slice(2)).toEqual(['allreduce 1', 'allreduce 2']);
    await operations.end('allreduce 2');
    all.push(operations.push('allreduce 3', lane));
    expect(operations.begun.slice(4)).toEqual(['allreduce 3']);
    await operations.endAll();
    await Promise.all(all);
    expect(engine.size).toBe(0);
  });

  it('goes on behind an operation that cannot run', async () => {
    const { operations } = setUp();
    const all = Promise.allSettled([
      operations.push('backward', { mutates: ['g'] }),
      operations.push('allreduce 1', { reads: ['g'], inOrder: 'lane' }),
      operations.push('allreduce 2', { inOrder: 'lane' }),
    ]);
    await operations.fail('backward', new Error('broken'));
    expect(operations.begun).toEqual(['backward', 'allreduce 2']);
    await operations.endAll();
    expect((await all).map(({ status }) => status)).toEqual(['rejected', 'rejected', 'fulfilled']);
  });
});

describe('what the engine remembers', () => {
  it('is bounded by what is under way, over 100,000 operations on ever new variables and lanes', async () => {
    const engine = new DependencyEngine({ concurrency: 4 });
    const WINDOW = 100;
    let most = 0;
    let ended = 0;
    for (let step = 0; step < 1000; step++) {
      const window = Array.from({ length: WINDOW }, (_, i) =>
        engine.push({
          name: `${step}.${i}`,
          reads: [`v${step}.${i >> 2}`, 'shared'],
          mutates: i % 3 === 0 ? [`v${step}.${i}`] : [],
          priority: i % 5,
          inOrder: `lane ${step}.${i % 7}`,
          run: () => Promise.resolve(void ended++),
        }),
      );
      most = Math.max(most, engine.size);
      await Promise.all(window);
    }
    expect(ended).toBe(100_000);
    expect(most).toBeLessThanOrEqual(4 * WINDOW);
    expect(engine.size).toBe(0);
  });

  it('does not grow by waits that gave up', async () => {
    const { engine, operations } = setUp();
    const pushed = operations.push('slow', { mutates: ['x'] });
    const size = engine.size;
    const aborted = AbortSignal.abort();
    const waits = [engine.waitFor(['x'], { signal: aborted }), engine.idle({ signal: aborted })];
    for (const wait of waits) await expect(wait).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(engine.size).toBe(size);
    await operations.endAll();
    await pushed;
  });
});

describe('bad arguments', () => {
  it.each([0, -1, 1.5, NaN])('a concurrency of %s is refused', (concurrency) => {
    expect(() => new DependencyEngine({ concurrency })).toThrow(UsageError);
  });

  it.each([
    [{ name: 7 }, /name is 7/],
    [{ name: 'n', reads: 'x' }, /reads is not a list/],
    [{ name: 'n', mutates: [1] }, /mutates is not a list/],
    [{ name: 'n', priority: NaN }, /'n' .*priority is NaN/],
    [{ name: 'n', inOrder: 3 }, /inOrder/],
    [{ name: 'n', run: undefined }, /run is not a function/],
  ])('%j is refused and changes nothing', async (options, message) => {
    const engine = new DependencyEngine();
    const push = engine.push({ run: () => Promise.resolve(1), ...options } as never);
    await expect(push).rejects.toThrow(message);
    await expect(push).rejects.toBeInstanceOf(UsageError);
    expect(engine.size).toBe(0);
  });
});
