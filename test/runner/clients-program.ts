/** Scripts of clients for clients.test.ts; the argument is the name of one. Not a test itself. */
import { shard, getRunner, type GetRunnerOptions, type OnConsistency } from '../../src/runner/index.ts';
import { smallModels } from './small-models.ts';

const isFirst = process.env['TRIBUTARY_WORKER'] !== '1';
const { model, train, test, optimizer, seed } = smallModels.mlp();
const say = (words: object): void => {
  if (isFirst) console.log(JSON.stringify(words));
};
/** A last batch of one sample: the second client has none. */
const uneven = train.slice(0, 33);

function open(consistency: OnConsistency, more: Partial<GetRunnerOptions> = {}) {
  const on = { workers: 2, clients: 2, consistency };
  return getRunner(model, { on, optimizer, seed, batchSize: 16, log: () => undefined, ...more });
}

const scripts: Record<string, () => Promise<void>> = {
  async 'an epoch leaves a client out'() {
    const runner = await open({ staleness: 0 });
    let steps = 0;
    for await (const { step } of runner.run(shard(uneven), { epochs: 10 })) steps = step;
    await runner.close();
    say({ steps });
  },

  async 'elastic for fewer steps than an interval'() {
    const runner = await open({ elastic: 1, everySteps: 1000 });
    const before = (await runner.evaluate(shard(test))).loss;
    let steps = 0;
    for await (const { step } of runner.run(shard(train), { maxSteps: 40 })) steps = step;
    const after = (await runner.evaluate(shard(test))).loss;
    await runner.close();
    say({ before, after, steps });
  },

  async 'leaves a run early, and runs again'() {
    const runner = await open({ staleness: 1 });
    const { signal } = new AbortController();
    for await (const { step } of runner.run(shard(train), { signal, epochs: 100 })) if (step === 7) break;
    let last = 0;
    for await (const { step } of runner.run(shard(train), { signal, maxSteps: 9 })) last = step;
    await runner.close();
    say({ last });
  },

  async 'stops all when one wants to'() {
    const runner = await open({ staleness: 3 });
    const controller = new AbortController();
    let steps = 0;
    for await (const { step } of runner.run(shard(train), { signal: controller.signal, epochs: 1e6 })) {
      steps = step;
      // One that is not the first worker.
      if (!isFirst && step === 20) controller.abort();
    }
    await runner.close();
    say({ hasStopped: steps >= 16 });
  },

  'loses a worker': () => loseWorker('asynchronous'),

  'loses a worker in lock step': () => loseWorker('synchronous'),
};

/** The second worker dies; what the first one says of it, or how many steps it made nevertheless. */
async function loseWorker(consistency: OnConsistency): Promise<void> {
  const runner = await open(consistency);
  let steps = 0;
  try {
    for await (const { step } of runner.run(shard(train), { epochs: 1e6, maxSteps: 1e5 })) {
      if (!isFirst && step === 20) process.kill(process.pid, 'SIGKILL');
      steps = step;
    }
    say({ steps });
  } catch (error) {
    say({ steps, message: (error as Error).message });
    await runner.abort(error as Error);
  }
}

await scripts[process.argv[2]!]!();
