/**
 * What stores offer where pushes take effect one by one: the rate of a push, a push without samples, a worker that others
 * need not wait for, and whether servers had values already.
 */
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { Servers } from './servers.ts';

let ground: Servers;
beforeAll(async () => {
  ground = await Servers.start(2);
});
afterEach(() => ground.closeStores());
afterAll(() => ground.close());

const one = () => new Float32Array([1]);

it('applies a push by the rate that travels with it, whoever pushed before by which', async () => {
  const access = ground.createService();
  const stores = await ground.connect(2, { access, consistency: { kind: 'asynchronous' } });
  await Promise.all(stores.map((store) => store.setOptimizer({ name: 'sgd', lr: 1 })));
  await Promise.all(stores.map((store) => store.init({ key: 'w', value: new Float32Array(1) })));
  await Promise.all(
    stores.map((store) => store.init({ key: 't', value: new Float32Array(2), rowLength: 1 })),
  );
  const [first, second] = stores;
  const into = one();
  await first!.push({ key: 'w', gradient: one() }, { lr: 0.5 });
  await second!.push({ key: 'w', gradient: one() }, { lr: 0.25 });
  await first!.pushpull({ key: 'w', gradient: one(), into }, { lr: 0.5 });
  expect(into[0]).toBe(-1.25);
  await second!.pushRows('t', Int32Array.of(1), one(), { lr: 0.125 });
  const rows = new Float32Array(2);
  await first!.pullRows('t', Int32Array.of(0, 1), rows);
  expect([...rows]).toEqual([0, -0.125]);
});

it('refuses a rate with a push where all wait for each other', async () => {
  const [store] = await ground.connect(1, { access: ground.createService() });
  await store!.init({ key: 'w', value: one() });
  const push = store!.push({ key: 'w', gradient: one() }, { lr: 0.5 });
  await expect(push).rejects.toThrow(/with a learning rate in synchronous training.*setLearningRate/);
});

it('counts a push without samples, and changes nothing by it', async () => {
  const access = ground.createService();
  const stores = await ground.connect(2, { access, combine: 'mean', updater: 'assign' });
  await Promise.all(stores.map((store) => store.init({ key: 'w', value: one() })));
  const into = [one(), one()];
  await Promise.all(
    stores.map((store, i) =>
      store.pushpull({ key: 'w', gradient: Float32Array.of(7 + i), into: into[i]! }, { isSkipped: i === 1 }),
    ),
  );
  expect(into.map(([value]) => value)).toEqual([7, 7]);
});

it('does not wait for a worker that pauses, until it pushes again', async () => {
  const access = ground.createService();
  const stores = await ground.connect(2, { access, consistency: { kind: 'bounded', staleness: 0 } });
  await Promise.all(stores.map((store) => store.init({ key: 'w', value: one() })));
  const [fast, slow] = stores;
  const push = (store: (typeof stores)[number]) => store.push({ key: 'w', gradient: one() });
  let isAnswered = false;
  const first = push(fast!).then(() => (isAnswered = true));
  // A question to the same servers that is answered later than the push could have been.
  await slow!.pull({ key: 'w', into: one() });
  expect(isAnswered).toBe(false);
  await slow!.pause();
  await first;
  await push(fast!);
  // Two steps behind, it holds up the other one again.
  isAnswered = false;
  await Promise.all([push(slow!)]);
  const third = push(fast!).then(() => (isAnswered = true));
  await slow!.pull({ key: 'w', into: one() });
  expect(isAnswered).toBe(false);
  await slow!.pause();
  await third;
});

it('knows whether servers had values, which its own were not taken for', async () => {
  const access = ground.createService();
  const [first] = await ground.connect(1, { access, consistency: { kind: 'asynchronous' } });
  await first!.init({ key: 'w', value: Float32Array.of(3) });
  expect(first!.foundValues).toBe(false);
  await ground.closeStores();
  const [again] = await ground.connect(1, { access, consistency: { kind: 'asynchronous' } });
  await again!.init({ key: 'w', value: Float32Array.of(5) });
  expect(again!.foundValues).toBe(true);
  const into = one();
  await again!.pull({ key: 'w', into });
  expect(into[0]).toBe(3);
  // A training that goes on from elsewhere brings its own.
  await again!.initState({ key: 'w', steps: 9, slots: {}, value: Float32Array.of(5) });
  await again!.pull({ key: 'w', into });
  expect(into[0]).toBe(5);
});
