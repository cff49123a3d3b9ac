/** A script that calls `fit` on several workers, for server-tables.test.ts; its argument has options. Not a test itself. */
import type { TributaryError } from '../../src/base/index.ts';
import { fit, getRunner, shard } from '../../src/runner/index.ts';
import { evaluate } from '../../src/runtime/index.ts';
import type { FitEvent, FitOptions } from '../../src/runner/index.ts';
import { wordsModel, wordsRun, type WordsOptions } from './words.ts';

const { model, use, ...options } = JSON.parse(process.argv[2]!) as Partial<FitOptions> & {
  readonly model?: WordsOptions;
  /** Instead of `fit`. */
  readonly use?: 'runner';
};

function errorOf(work: () => unknown): string {
  try {
    work();
    return 'none';
  } catch (error) {
    return (error as Error).message;
  }
}

async function fitted(): Promise<object> {
  const events: FitEvent[] = [];
  const result = await fit(wordsModel(model), {
    ...{ ...wordsRun, ...options, log: () => undefined },
    onEvent: (event) => event.type !== 'progress' && events.push(event),
  });
  const { replica, steps, evaluation, checkpointPath } = result;
  const { memory } = replica;
  const said = {
    ...{ steps, evaluation, checkpointPath, events },
    elements: memory.parameters.get('words')!.length,
    refused: [errorOf(() => evaluate(replica, wordsRun.test!)), errorOf(() => replica.snapshot())],
  };
  await result.close();
  return said;
}

async function ran(): Promise<object> {
  const { train, test, epochs, ...config } = { ...wordsRun, ...options };
  const runner = await getRunner(wordsModel(model), {
    on: config.on,
    ...{ optimizer: config.optimizer, batchSize: 16, seed: 5, log: () => undefined },
    ...{ checkpointDirectory: config.checkpointDirectory, serverTables: config.serverTables },
  });
  const before = await runner.evaluate(shard(test!));
  const early = await runner.save().then(
    () => 'none',
    (error: TributaryError) => error.message,
  );
  const losses: number[] = [];
  for await (const { loss } of runner.run(shard(train), { epochs })) losses.push(loss);
  const after = await runner.evaluate(test!);
  const averages = model?.averages ? { average: 'slow' } : undefined;
  const averaged = averages && [
    await runner.evaluate(test!, averages),
    await runner.evaluate(shard(test!), averages),
  ];
  const routes = runner.plan!.parameters.map(({ name, route }) => [name, route]);
  await runner.close();
  return { before, early, losses, after, averaged, routes };
}

const said = await (use === 'runner' ? ran() : fitted());
console.log(JSON.stringify(said));
