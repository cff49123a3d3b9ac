/**
 * Update rules of users in a real `tributary server`: known by name, with slots that are in
 * checkpoints; what they do wrong is named, and neither the server nor other tenants suffer from it.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { RemoteStore } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { start } from '../cli/program.ts';
import type { Program } from '../cli/program.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';

const RULES = fileURLToPath(new URL('./own-rules.mjs', import.meta.url));
const folder = temporaryFolders();
const LENGTH = 20_000;
const ROW = 4;
const DEADLINE_MS = 120_000;

interface Running {
  readonly program: Program;
  readonly connect: (options?: Partial<RemoteStoreOptions>, namespace?: string) => Promise<RemoteStore>;
}

async function serve(cwd: string, ...args: string[]): Promise<Running> {
  const named = ['--service', 'first', '--service', 'second', '--cores', '2'];
  const program = start(['server', '--json', '--port', '0', ...named, ...args], cwd);
  const { server } = await program.waitFor('listening');
  const connect = (options: Partial<RemoteStoreOptions> = {}, namespace = 'first') => {
    const nonce = readFileSync(join(cwd, 'nonces', `${namespace}.nonce`), 'utf8').trim();
    const access = { namespace, nonce };
    return RemoteStore.connect({ servers: [server as string], access, worker: 0, workers: 1, ...options });
  };
  return { program, connect };
}

const floats = (value: number, length = LENGTH) => new Float32Array(length).fill(value);

async function valueOf(store: RemoteStore, key: string, length = LENGTH): Promise<Float32Array> {
  const into = new Float32Array(length);
  await store.pull({ key, into });
  return into;
}

/** Lion written out, after gradients that are alike in all elements. */
function lion(gradients: readonly number[], rate: number, beta: number): readonly [number, number] {
  let [value, momentum] = [1, 0];
  for (const gradient of gradients) {
    momentum = Math.fround(Math.fround(beta * momentum) + (1 - beta) * gradient);
    value = Math.fround(value - rate * Math.sign(momentum));
  }
  return [value, momentum];
}

describe.skipIf(!hasSharedMemory())('update rules of users', { timeout: DEADLINE_MS }, () => {
  const spec = { rule: 'lion', lr: 0.25, options: { beta: 0.5 } };

  it('update dense keys and rows of tables by name, with slots and a rate that can change', async () => {
    const { connect } = await serve(folder(), '--rules', RULES);
    const store = await connect({ rows: 'exact' });
    await store.setOptimizer(spec);
    await store.init([
      { key: 'w', value: floats(1) },
      { key: 't', value: floats(1, 10 * ROW), rowLength: ROW },
    ]);
    const gradients = [4, -1, -1, -1];
    for (const [i, gradient] of gradients.entries()) {
      await store.push({ key: 'w', gradient: floats(gradient) });
      await store.pushRows('t', Int32Array.of(i), floats(1, ROW));
    }
    const [value, momentum] = lion(gradients, 0.25, 0.5);
    expect(new Set(await valueOf(store, 'w'))).toEqual(new Set([value]));
    const { slots, steps } = await store.pullState('w');
    expect({ steps, slots: Object.keys(slots) }).toEqual({ steps: 4, slots: ['momentum'] });
    expect((slots['momentum'] as Float32Array)[LENGTH - 1]).toBeCloseTo(momentum, 5);
    // Row 0 goes on by its momentum after its only gradient, row 9 has none.
    const table = await valueOf(store, 't', 10 * ROW);
    expect([table[0], table[3 * ROW], table[9 * ROW]]).toEqual([1 - 4 * 0.25, 0.75, 1]);
    await store.setLearningRate(2);
    await store.push({ key: 'w', gradient: floats(-8) });
    expect((await valueOf(store, 'w'))[0]).toBe(value + 2);
    await store.close();
  });

  it('are refused by a name that is not known, with those that are, and with wrong options', async () => {
    const { connect } = await serve(folder(), '--rules', RULES);
    const store = await connect();
    await expect(store.setOptimizer({ rule: 'lions', lr: 1 })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringMatching(/no update rule 'lions'.*known are lion, plain, throws/) as string,
    });
    await expect(store.setOptimizer({ rule: 'lion' } as never)).rejects.toThrow(
      /lr of rule 'lion' is undefined/,
    );
    await expect(store.setOptimizer({ ...spec, options: { beta: 2 } })).rejects.toThrow(
      /rule 'lion' does not take its options: beta is 2/,
    );
    await store.close();
    const { connect: without } = await serve(folder());
    const other = await without();
    await expect(other.setOptimizer(spec)).rejects.toThrow(/start the server with --rules/);
    await other.close();
  });

  it.each([
    ['throws', /rule 'throws' failed: no idea what to do/, 7],
    ['divides', /rule 'divides' failed: it wrote Infinity to the parameter in step 2/, 1],
    ['loops', /rule 'loops' failed: it took more than 1000 ms/, 0],
  ])(
    'that fail as %s are named, change nothing, and leave the server to others',
    async (rule, message, kept) => {
      const { connect, program } = await serve(folder(), '--rules', RULES);
      const other = await connect({}, 'second');
      await other.init({ key: 'w', value: floats(1) });
      const store = await connect();
      await store.init({ key: 'w', value: floats(0) });
      await store.setOptimizer({ rule, lr: 1 });
      await store.push({ key: 'w', gradient: floats(1) });
      await expect(store.push({ key: 'w', gradient: floats(1) })).rejects.toMatchObject({
        code: 'RULE_FAILED',
        message: expect.stringMatching(message) as string,
      });
      expect(new Set(await valueOf(store, 'w'))).toEqual(new Set([kept]));
      await store.close();
      await other.push({ key: 'w', gradient: floats(3) });
      expect((await valueOf(other, 'w'))[0]).toBe(3);
      expect(program.child.exitCode).toBe(null);
      await other.close();
    },
  );

  it('that fail in a held step are told to all workers', async () => {
    const { connect } = await serve(folder(), '--rules', RULES);
    const stores = await Promise.all([0, 1].map((worker) => connect({ worker, workers: 2, held: true })));
    await Promise.all(stores.map((store) => store.init({ key: 'w', value: floats(0) })));
    await Promise.all(stores.map((store) => store.setOptimizer({ rule: 'throws', lr: 1 })));
    const step = async (store: RemoteStore) => {
      await store.push({ key: 'w', gradient: floats(1) });
      await store.apply();
    };
    await Promise.all(stores.map(step));
    const results = await Promise.allSettled(stores.map(step));
    for (const result of results) {
      expect(result).toMatchObject({ status: 'rejected', reason: { code: 'RULE_FAILED' } });
    }
    await Promise.all(stores.map((store) => store.close()));
  });

  it('are found again by a server that was started again, which names them if they are gone', async () => {
    const cwd = folder();
    const kept = ['--folder', join(cwd, 'kept')];
    const asynchronous = { consistency: { kind: 'asynchronous' } } as const;
    const before = await serve(cwd, '--rules', RULES, ...kept);
    const store = await before.connect(asynchronous);
    await store.setOptimizer(spec);
    await store.init({ key: 'w', value: floats(1) });
    await store.push({ key: 'w', gradient: floats(4) });
    await store.checkpoint(1, { isDurable: true });
    await store.push({ key: 'w', gradient: floats(-1) });
    before.program.child.kill('SIGKILL');
    await before.program.ended;
    await store.close();
    const after = await serve(cwd, '--rules', RULES, ...kept);
    const again = await after.connect(asynchronous);
    await again.init({ key: 'w', value: floats(9) });
    const [value, momentum] = lion([4, -1], 0.25, 0.5);
    expect((await valueOf(again, 'w'))[5]).toBe(value);
    expect(((await again.pullState('w')).slots['momentum'] as Float32Array)[5]).toBeCloseTo(momentum, 5);
    await again.close();
    after.program.child.kill('SIGKILL');
    await after.program.ended;
    const without = await serve(cwd, ...kept);
    const last = await without.connect(asynchronous);
    await expect(last.init({ key: 'w', value: floats(9) })).rejects.toThrow(/no update rule 'lion'/);
    await last.close();
  });

  it('are refused at the start of a server if their module is not right', async () => {
    const cwd = folder();
    const cases: readonly (readonly [string, RegExp])[] = [
      ['export const nothing = 1;', /neither rules nor aggregators/],
      ['export const rules = { a: {} };', /'a' of rules has no function update/],
      ['export const rules = { a: { update() {}, slots: ["x", "x"] } };', /'a' of rules has a slot twice/],
      ['throw new Error("broken");', /cannot be loaded: broken/],
    ];
    for (const [i, [text, message]] of cases.entries()) {
      const path = join(cwd, `rules-${i}.mjs`);
      writeFileSync(path, text);
      const { ended } = start(['server', '--port', '0', '--service', 'a', '--rules', path], cwd);
      const { code, stderr } = await ended;
      expect(code).toBe(2);
      expect(stderr).toMatch(message);
    }
  });
});
