import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { InternalError, PeerError, UsageError } from '../../src/base/index.ts';
import { DependencyEngine } from '../../src/engine/index.ts';
import { ControlledOperations, settled } from './controlled-operations.ts';

function setUp() {
  const engine = new DependencyEngine();
  return { engine, operations: new ControlledOperations(engine) };
}

async function reasonOf(promise: Promise<unknown>): Promise<unknown> {
  const [outcome] = await Promise.allSettled([promise]);
  return outcome.status === 'rejected' ? outcome.reason : expect.unreachable('it was fulfilled');
}

describe('an operation that fails', () => {
  it('rejects with its own error, thrown at once or later', async () => {
    const { engine } = setUp();
    const error = new Error('broken');
    const throwing = () => {
      throw error;
    };
    expect(await reasonOf(engine.push({ name: 'at once', run: throwing }))).toBe(error);
    expect(await reasonOf(engine.push({ name: 'later', run: () => Promise.reject(error) }))).toBe(error);
    expect(engine.size).toBe(0);
  });

  it('keeps later readers of what it was to write from running, and theirs, naming culprit and variable', async () => {
    const { operations } = setUp();
    const error = new PeerError('PEER_LOST', 'member 3 died');
    const failing = reasonOf(operations.push('allreduce g', { mutates: ['g'] }));
    const direct = reasonOf(operations.push('update w', { reads: ['g', 'w'], mutates: ['w'] }));
    const indirect = reasonOf(operations.push('forward', { reads: ['w'] }));
    const other = operations.push('other', { reads: ['v'], mutates: ['u'] });
    await operations.fail('allreduce g', error);
    expect(await failing).toBe(error);
    expect(await direct).toMatchObject({
      code: 'PEER_LOST',
      cause: error,
      facts: { operation: 'update w', variable: 'g', writer: 'allreduce g', culprit: 'allreduce g' },
    });
    expect(await indirect).toMatchObject({
      code: 'PEER_LOST',
      cause: error,
      facts: { operation: 'forward', variable: 'w', writer: 'update w', culprit: 'allreduce g' },
    });
    expect(await direct).toBeInstanceOf(PeerError);
    expect(((await direct) as Error).message).toContain(
      "operation 'update w' did not run: it reads 'g', which operation 'allreduce g' was to write and failed (member 3 died)",
    );
    expect(((await indirect) as Error).message).toContain(
      "it reads 'w', which operation 'update w' was to write and did not, since operation 'allreduce g' failed",
    );
    await operations.endAll();
    expect(await other).toBe('other');
  });

  it.each([
    [new UsageError('SHAPE_MISMATCH', 'm'), UsageError, 'SHAPE_MISMATCH'],
    [new InternalError('RUNTIME_FAILURE', 'm'), InternalError, 'RUNTIME_FAILURE'],
    [new TypeError('m'), PeerError, 'CANCELLED'],
  ])('hands class and code of %s on', async (error, kind, code) => {
    const { engine } = setUp();
    const failing = reasonOf(engine.push({ name: 'w', mutates: ['x'], run: () => Promise.reject(error) }));
    const derived = await reasonOf(engine.push({ name: 'r', reads: ['x'], run: () => Promise.resolve(1) }));
    expect(derived).toBeInstanceOf(kind);
    expect(derived).toMatchObject({ code, cause: error });
    expect(await failing).toBe(error);
  });

  it('damages nothing that it only reads', async () => {
    const { engine } = setUp();
    await reasonOf(engine.push({ name: 'r', reads: ['x'], run: () => Promise.reject(new Error('m')) }));
    expect(await engine.push({ name: 'r2', reads: ['x'], run: () => Promise.resolve(2) })).toBe(2);
  });

  it('is made good by one that writes without reading, not by one that does both or fails', async () => {
    const { engine } = setUp();
    const run = () => Promise.resolve('ran');
    const broken = () => Promise.reject(new Error('broken'));
    const code = 'CANCELLED';
    await reasonOf(engine.push({ name: 'w', mutates: ['x'], run: broken }));
    expect(engine.size).toBe(1);
    expect(await reasonOf(engine.push({ name: 'both', reads: ['x'], mutates: ['x'], run }))).toMatchObject({
      code,
    });
    await reasonOf(engine.push({ name: 'w2', mutates: ['x'], run: broken }));
    expect(await reasonOf(engine.push({ name: 'r', reads: ['x'], run }))).toMatchObject({
      facts: { culprit: 'w2' },
    });
    expect(await engine.push({ name: 'afresh', mutates: ['x'], run })).toBe('ran');
    expect(await engine.push({ name: 'r2', reads: ['x'], mutates: ['x'], run })).toBe('ran');
    expect(engine.size).toBe(0);
  });

  it('fails a chain of 100,000 without overflowing the stack', async () => {
    const { engine, operations } = setUp();
    const chain = [operations.push('first', { mutates: ['x'] })];
    for (let i = 0; i < 100_000; i++) chain.push(operations.push(`${i}`, { reads: ['x'], mutates: ['x'] }));
    const outcomes = Promise.allSettled(chain);
    await operations.fail('first', new Error('broken'));
    expect((await outcomes).every(({ status }) => status === 'rejected')).toBe(true);
    expect(operations.begun).toEqual(['first']);
    expect(engine.size).toBe(1);
  });
});

describe('a rejection that nobody awaits', () => {
  const unhandled: unknown[] = [];
  const note = (reason: unknown) => void unhandled.push(reason);
  let others: NodeJS.UnhandledRejectionListener[] = [];

  // The test runner listens too, and would take what is provoked here for a fault.
  beforeEach(() => {
    unhandled.length = 0;
    others = process.listeners('unhandledRejection');
    process.removeAllListeners('unhandledRejection');
    process.on('unhandledRejection', note);
  });
  afterEach(() => {
    process.removeListener('unhandledRejection', note);
    for (const listener of others) process.on('unhandledRejection', listener);
  });

  it('shows as one unhandled rejection each: of the culprit, of those derived from it, and of those closed out', async () => {
    const { engine, operations } = setUp();
    const error = new Error('broken');
    void operations.push('w', { mutates: ['x'] });
    void operations.push('r', { reads: ['x'] });
    await operations.fail('w', error);
    expect(unhandled).toMatchObject([error, { facts: { operation: 'r', culprit: 'w' } }]);
    void operations.push('stays', { mutates: ['y'] });
    void operations.push('closed out', { reads: ['y'] });
    const close = engine.close();
    await settled();
    expect(unhandled.slice(2)).toMatchObject([{ facts: { operation: 'closed out' } }]);
    await operations.endAll();
    await close;
    expect(unhandled).toHaveLength(3);
  });

  it('does not show if every promise is awaited, whoever else waits for the same operations', async () => {
    const { engine, operations } = setUp();
    const all = Promise.allSettled([
      operations.push('w', { mutates: ['x'] }),
      operations.push('r', { reads: ['x'] }),
    ]);
    const waits = [engine.waitFor(['x']), engine.idle()];
    await operations.fail('w', new Error('broken'));
    await Promise.all([all, ...waits]);
    await settled();
    expect(unhandled).toEqual([]);
  });
});
