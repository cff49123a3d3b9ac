/**
 * A rank of the kill test: runs allreduces of random sizes without end, says whom every failure named and when, forms the
 * world anew after a loss and whenever a newcomer waits. Not a test itself. Invariant: what a world does follows from its
 * id and the seed alone, so that all of its ranks do the same.
 */
import { deriveSeed, PeerError, Random } from '../../src/base/index.ts';
import type { Cluster, Group } from '../../src/cluster/index.ts';
import { allReduce, availableAlgorithms } from '../../src/collectives/index.ts';
import type { Handle } from '../../src/progress/index.ts';
import {
  enterCluster,
  leaveCluster,
  say,
  settings,
  untilTold,
  wasTold,
} from '../collectives/rank-program-start.ts';
import { holdings } from './holdings.ts';

const MIN_ELEMENTS = 256;
const MAX_ELEMENTS = 2 ** 21;

say('loaded');
await untilTold('join');
const cluster = await joinUntilTaken();
const { world } = cluster;
cluster.on('left', ({ title }) => say('named', { by: 'event', message: title }));
say('joined', { group: world.id });

const shareable = cluster.allocate('float32', MAX_ELEMENTS);
const own = cluster.space.allocate(4 * MAX_ELEMENTS).allocate('float32', MAX_ELEMENTS);
const signals = cluster.allocate('int32', 2);

for (;;) {
  try {
    if ((await runWorld(cluster.world)) === 'stop') break;
  } catch (error) {
    tell(error, 'collective');
  }
  await regroup();
}
await leaveCluster(cluster);

/** Somebody may die while this process is being taken in; then it comes again, as another member. */
async function joinUntilTaken(): Promise<Cluster> {
  for (;;) {
    try {
      return await enterCluster();
    } catch (error) {
      tell(error, 'join');
    }
  }
}

/** Somebody may die while the world is being formed; then it is formed once more. */
async function regroup(): Promise<void> {
  for (;;) {
    say('regrouping');
    try {
      await cluster.regroup();
      return;
    } catch (error) {
      tell(error, 'regroup');
    }
  }
}

function tell(error: unknown, by: string): void {
  if (!(error instanceof PeerError)) throw error;
  const { code, message } = error;
  say('named', { by, code, message });
}

/** Allreduces until a newcomer waits or the test ends; throws when a rank is lost. */
async function runWorld(group: Group): Promise<'regroup' | 'stop'> {
  const random = new Random(deriveSeed(settings.seed, group.id));
  const algorithms = availableAlgorithms(group);
  for (let step = 0; ; step++) {
    const span = Math.log2(MAX_ELEMENTS / MIN_ELEMENTS);
    const length = Math.floor(MIN_ELEMENTS * 2 ** (span * random.uniform()));
    const algorithm = algorithms[random.below(algorithms.length)]!;
    const vector = (random.below(2) === 0 ? shareable : own).slice(0, length);
    fill(vector.view, group.rank + 1);
    await finish(allReduce(group, vector, { algorithm }), step);
    check(vector.view, (group.size * (group.size + 1)) / 2, `${algorithm} of ${length} in group ${group.id}`);

    signals.view[0] = cluster.newcomers > 0 ? 1 : 0;
    signals.view[1] = wasTold('stop') ? 1 : 0;
    await finish(allReduce(group, signals, { op: 'max', tag: 1 }), step);
    if (step === 0) say('correct', { group: group.id, size: group.size, ...holdings() });
    if (signals.view[1] > 0) return 'stop';
    if (signals.view[0] > 0) return 'regroup';
  }
}

async function finish(handle: Handle, step: number): Promise<void> {
  if (step % 2 === 0) await handle;
  else handle.wait();
}

/** Whole numbers, so that sums are exact in any order. */
function fill(view: Float32Array, factor: number): void {
  for (let i = 0; i < view.length; i++) view[i] = factor * ((i % 1021) + 1);
}

function check(view: Float32Array, factor: number, what: string): void {
  for (let i = 0; i < view.length; i++) {
    const wanted = factor * ((i % 1021) + 1);
    if (view[i] !== wanted) throw new Error(`${what}: [${i}] is ${view[i]}, expected ${wanted}`);
  }
}
