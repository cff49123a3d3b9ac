/** The same on all processors of this machine. Run it with: npx tsx examples/all-workers.ts */
import { findMnist, getRunner, loadMnist, mlp, shard } from 'tributary';

const { train, test } = loadMnist(findMnist(import.meta.url));
const model = mlp({ inputShape: [1, 28, 28], hidden: [512], classes: 10 });
const config = { optimizer: { name: 'adam', lr: 0.001 }, batchSize: 256 } as const;
const runner = await getRunner(model, config);
for await (const { step, loss } of runner.run(shard(train), { maxSteps: 200 })) {
  if (step % 100 === 0) console.log(`step ${step}: loss ${loss.toFixed(3)}`);
}
const { accuracy } = await runner.evaluate(test);
console.log(`accuracy ${accuracy}`);
await runner.close();
