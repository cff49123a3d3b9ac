/** A script with workers for faulty-workers.test.ts: goes wrong in the way its argument says. Not a test itself. */
import * as g from '../../src/graph/index.ts';
import { Dataset } from '../../src/data/index.ts';
import { getRunner, shard, type Runner, type RunnerConfig } from '../../src/runner/index.ts';

const fault = process.argv[2]!;
const isFirst = process.env['TRIBUTARY_WORKER'] !== '1';
const graph = new g.Graph();
const x = graph.input('x', [g.N, 4]);
const logits = g.linear(x, fault === 'other model' && !isFirst ? 3 : 2);
const loss = g.crossEntropy(logits, graph.input('labels', [g.N], 'int32'));
const model = { graph, loss, outputs: { logits } };
const width = fault === 'wider data' && !isFirst ? 5 : 4;
const train = new Dataset([
  {
    name: 'x',
    data: Float32Array.from({ length: 100 * width }, (_, i) => Math.sin(i)),
    sampleShape: [width],
  },
  {
    name: 'labels',
    data: Int32Array.from({ length: 100 }, (_, i) => (i + (fault === 'other data' && !isFirst ? 1 : 0)) % 2),
  },
]);
if (fault === 'ends early' && !isFirst) throw new Error('this worker has no licence');
const config: RunnerConfig = {
  ...{ optimizer: { name: 'sgd', lr: 0.1 }, batchSize: 10, compareEverySteps: 5 },
  log: (line) => fault === 'no shard' && console.log(line),
  ...(fault === 'killed at the end' ? { trace: '/dev/null' } : {}),
};
const on = /^(unreachable|not started)$/.test(fault)
  ? {
      machines: [
        { name: 'a', address: '127.0.0.1' },
        { name: 'b', command: [fault === 'unreachable' ? 'false' : 'no-such-program'] },
      ],
    }
  : { workers: 2, strategy: fault.endsWith('with servers') ? ('servers' as const) : ('hybrid' as const) };
let runner: Runner | undefined;
try {
  runner = await getRunner(model, { ...config, on });
  for await (const { step } of runner.run(fault === 'no shard' ? train : shard(train), { epochs: 4 })) {
    if (fault === 'drifts' && !isFirst && step === 3)
      runner.replica.memory.parameters.values().next().value!.view[0]! += 1;
    if (/^killed( with servers)?$/.test(fault) && !isFirst && step === 3)
      process.kill(process.pid, 'SIGKILL');
  }
  if (fault === 'killed at the end' && !isFirst) process.kill(process.pid, 'SIGKILL');
  // Whoever closes twice, in a handler of a signal say, waits for the same end.
  await Promise.all([runner.close(), runner.close()]);
  console.log('trained');
} catch (error) {
  console.log(error instanceof Error ? error.message : String(error));
  // Nothing that is left open may keep the process: it ends by itself.
  await runner?.abort(error as Error);
  process.exitCode = 1;
}
