import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { PeerError, UsageError } from '../../src/base/index.ts';
import { DependencyEngine } from '../../src/engine/index.ts';
import { ControlledOperations, settled } from './controlled-operations.ts';

function setUp(concurrency?: number) {
  const engine = new DependencyEngine({ concurrency });
  const ended: string[] = [];
  const note = (name: string, wait: Promise<void>) => wait.then(() => void ended.push(name));
  return { engine, operations: new ControlledOperations(engine), ended, note };
}

describe('waitFor', () => {
  it('ends when all that were pushed before and use a variable have ended, however, and not for later ones', async () => {
    const { engine, operations, ended, note } = setUp();
    const all = Promise.allSettled([
      operations.push('w', { mutates: ['x'] }),
      operations.push('r', { reads: ['x'], mutates: ['y'] }),
      operations.push('other', { mutates: ['z'] }),
    ]);
    const waits = [note('x', engine.waitFor(['x'])), note('y and unknown', engine.waitFor(['y', 'unknown']))];
    const later = operations.push('later', { mutates: ['x'] });
    await operations.end('w');
    expect(ended).toEqual([]);
    await operations.fail('r', new Error('broken'));
    await Promise.all(waits);
    expect(ended).toEqual(['x', 'y and unknown']);
    await engine.waitFor(['nobody', 'uses']);
    await operations.endAll();
    await Promise.all([all, later]);
  });

  it('holds no operation back', async () => {
    const { engine, operations } = setUp();
    const all = [operations.push('r1', { reads: ['x'] })];
    const wait = engine.waitFor(['x']);
    all.push(operations.push('r2', { reads: ['x'] }));
    expect(operations.begun).toEqual(['r1', 'r2']);
    await operations.end('r1');
    await wait;
    await operations.endAll();
    await Promise.all(all);
  });
});

describe('idle', () => {
  it('ends when nothing is left, later pushes included', async () => {
    const { engine, operations, ended, note } = setUp();
    await engine.idle();
    const all = [operations.push('a')];
    const idle = note('idle', engine.idle());
    all.push(operations.push('b'));
    await operations.end('a');
    expect(ended).toEqual([]);
    await operations.end('b');
    await idle;
    await Promise.all(all);
  });
});

describe('close', () => {
  it('rejects by name what has not begun, awaits what has, and takes nothing more', async () => {
    const { engine, operations, ended, note } = setUp(1);
    const begun = operations.push('begun', { mutates: ['x'] });
    const outcomes = Promise.allSettled([
      operations.push('blocked', { reads: ['x'], inOrder: 'lane' }),
      operations.push('no place', { inOrder: 'lane' }),
    ]);
    const waits = Promise.all([engine.waitFor(['x']), engine.idle()]);
    const close = note('close', engine.close());
    const cancelled = (operation: string) => ({
      status: 'rejected',
      reason: expect.toSatisfy(
        (error) =>
          error instanceof PeerError && error.code === 'CANCELLED' && error.message.includes(operation),
      ) as unknown,
    });
    expect(await outcomes).toEqual([cancelled('blocked'), cancelled('no place')]);
    const refused = operations.push('late');
    await expect(refused).rejects.toThrow(/'late'.*closed/);
    await expect(refused).rejects.toBeInstanceOf(UsageError);
    await settled();
    expect(ended).toEqual([]);
    await operations.end('begun');
    expect(await begun).toBe('begun');
    await close;
    await waits;
    await engine.close();
    expect(operations.begun).toEqual(['begun']);
  });

  it('may be called by an operation that begins', async () => {
    const engine = new DependencyEngine();
    const first = engine.push({ name: 'first', mutates: ['x'], run: settled });
    const outcomes = Promise.allSettled([
      engine.push({
        name: 'second',
        reads: ['x'],
        inOrder: 'lane',
        run: () => Promise.resolve(void engine.close()),
      }),
      engine.push({ name: 'third', inOrder: 'lane', run: () => Promise.resolve() }),
    ]);
    await first;
    expect((await outcomes).map(({ status }) => status)).toEqual(['fulfilled', 'rejected']);
    await engine.close();
    expect(engine.size).toBe(0);
  });
});

describe('a deadline', () => {
  beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] }));
  afterEach(() => void vi.useRealTimers());

  it('ends every kind of wait by an error that names what is under way, and leaves the operations alone', async () => {
    const { engine, operations } = setUp();
    const all = [operations.push('slow', { mutates: ['x'] }), operations.push('next', { mutates: ['x'] })];
    const waits = Promise.allSettled([engine.waitFor(['x'], { timeoutMs: 50 }), engine.idle()]);
    vi.advanceTimersByTime(600_000);
    for (const outcome of await waits) {
      expect(outcome).toMatchObject({
        status: 'rejected',
        reason: { code: 'TIMEOUT', facts: { underWay: ['slow'], waiting: 1 } },
      });
    }
    await operations.endAll();
    expect(await Promise.all(all)).toEqual(['slow', 'next']);
    const stuck = operations.push('stuck');
    const close = expect(engine.close({ timeoutMs: 5 })).rejects.toThrow(
      /close did not end within 5 ms.*'stuck'/,
    );
    vi.advanceTimersByTime(5);
    await close;
    await operations.end('stuck');
    await engine.close();
    await stuck;
    expect(vi.getTimerCount()).toBe(0);
  });

  it('leaves no timer or listener behind when a wait ends in time', async () => {
    const { engine, operations } = setUp();
    const { signal } = new AbortController();
    const pushed = operations.push('a', { mutates: ['x'] });
    const waits = [engine.waitFor(['x'], { signal }), engine.idle({ signal, timeoutMs: 1e12 })];
    await operations.endAll();
    await Promise.all([pushed, ...waits]);
    expect(vi.getTimerCount()).toBe(0);
  });
});
