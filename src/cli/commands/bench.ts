/** `tributary bench`: runs a benchmark of `src/bench` and prints it; measures nothing itself. */
import { resolve } from 'node:path';
import { didYouMean, UsageError } from '../../base/index.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import { ExitCode, type CommandIo } from '../io.ts';
import { checkOutputFile, writeOutputFile } from '../output-file.ts';
import { runAllReduce } from './bench-allreduce.ts';
import { runCompute } from './bench-compute.ts';
import { exchangeOptions, runExchange } from './bench-exchange.ts';
import { hybridOptions, runHybrid } from './bench-hybrid.ts';
import { mergeOptions, runMerge } from './bench-merge.ts';
import { runRunner } from './bench-runner.ts';
import { runScaleup, scaleupOptions } from './bench-scaleup.ts';

const options = {
  rounds: {
    kind: 'count',
    help: 'Alternating rounds, at least 5. Default 7. scaleup, merge, hybrid, runner: at least 1, default 3, 8, 4 and 5.',
  },
  'turn-ms': {
    kind: 'count',
    help: 'Time of one turn in milliseconds. Default 400 (compute), 60 (allreduce), 300 (exchange), 4000 (scaleup), 3000 (runner).',
  },
  picture: { kind: 'text', value: 'FILE', help: 'Also draw the result as an SVG.' },
  output: { kind: 'text', value: 'FILE', help: 'Also write the JSON form here.' },
  models: {
    kind: 'text',
    value: 'A,B',
    help: 'compute: only these models. Default all. merge: mlp, resnet. runner: cnn, resnet. hybrid: text-cnn, lm, cnn, resnet.',
  },
  tfjs: {
    kind: 'text',
    value: 'DIR',
    help: 'compute: folder with TensorFlow.js (npm install --prefix DIR @tensorflow/tfjs @tensorflow/tfjs-backend-wasm). Default: left out.',
  },
  transport: {
    kind: 'text',
    choices: ['shm', 'tcp', 'mpi'],
    help: 'allreduce, exchange: what our processes use; Open MPI uses the same class. mpi: allreduce only. Default shm.',
  },
  ranks: { kind: 'count', help: 'allreduce: processes that sum. Default 2.' },
  algorithm: {
    kind: 'text',
    value: 'A,B',
    help: 'allreduce: direct, ring, rings, halving-doubling, tree, native or auto, each a case of its own. Default auto.',
  },
  sizes: {
    kind: 'text',
    value: '1KB,4MB',
    help: 'allreduce: lengths of the vectors. Default 1 KB to 128 MB.',
  },
  ...exchangeOptions,
  ...scaleupOptions,
  ...mergeOptions,
  ...hybridOptions,
  peers: {
    ...exchangeOptions.peers,
    help: `${exchangeOptions.peers.help} scaleup: ddp, mpi or none. runner: ddp or none.`,
  },
  workers: {
    ...exchangeOptions.workers,
    help: 'exchange, merge, runner, hybrid: processes that exchange. Default 2. hybrid: over all hosts.',
  },
  batch: {
    ...scaleupOptions.batch,
    help: `${scaleupOptions.batch.help} runner: of one worker, one number. Default 32.`,
  },
} as const satisfies OptionSpecs;

type Options = OptionValues<typeof options> & { readonly json?: boolean };

/** Options that not all benchmarks take. */
const ownOptions = {
  compute: ['models', 'tfjs'],
  allreduce: ['transport', 'ranks', 'algorithm', 'sizes'],
  exchange: ['transport', ...(Object.keys(exchangeOptions) as (keyof typeof exchangeOptions)[])],
  merge: ['models', 'workers', ...(Object.keys(mergeOptions) as (keyof typeof mergeOptions)[])],
  scaleup: ['peers', ...(Object.keys(scaleupOptions) as (keyof typeof scaleupOptions)[])],
  runner: ['models', 'workers', 'batch', 'peers'],
  hybrid: ['models', 'workers', 'hosts', ...(Object.keys(mergeOptions) as (keyof typeof mergeOptions)[])],
} as const satisfies Record<string, readonly (keyof Options)[]>;
type Bench = keyof typeof ownOptions;
const benches = Object.keys(ownOptions) as Bench[];

/** What a benchmark found, and the ways to show it. */
export interface Shown {
  readonly result: unknown;
  readonly picture: () => string;
  readonly print: () => void;
}

const runs: Readonly<Record<Bench, (given: Options, io: CommandIo) => Promise<Shown>>> = {
  compute: runCompute,
  allreduce: runAllReduce,
  exchange: runExchange,
  scaleup: runScaleup,
  merge: runMerge,
  runner: runRunner,
  hybrid: runHybrid,
};

export const benchCommand = defineCommand({
  name: 'bench',
  summary:
    'Measure training steps, collectives, exchanges, learners, merging, workers or hybrid routes here and in other systems on this machine.',
  operands: '<compute|allreduce|exchange|scaleup|merge|runner|hybrid>',
  operandCount: [1, 1],
  options,
  examples: [
    'tributary bench compute --models mlp,textcnn --json',
    'tributary bench allreduce --transport shm --ranks 2 --picture curves.svg',
    'tributary bench exchange --model resnet18 --workers 2 --transport shm --json',
    'tributary bench exchange --model resnet18 --sweep chunks --picture chunks.svg',
    'tributary bench exchange --rows 6500 --table-rows 800000 --row-length 128',
    'tributary bench scaleup --data banking77-train.csv --learners 1,2 --batch 1,2,8,32 --picture scaleup.svg',
    'tributary bench merge --rate 1000 --picture merge.svg',
    'tributary bench hybrid --models lm --links link --rate 1000 --picture hybrid.svg',
    'tributary bench runner --models cnn,resnet --workers 2 --batch 32 --picture runner.svg',
  ],
  run: async ([what], given: Options, io) => {
    const bench = benchNamed(what!, given);
    const pathOf = (option: 'output' | 'picture'): string | undefined => {
      const path = given[option] === undefined ? undefined : resolve(io.cwd, given[option]);
      if (path !== undefined) checkOutputFile(path, `--${option}`);
      return path;
    };
    const [outputPath, picturePath] = [pathOf('output'), pathOf('picture')];
    const { result, picture, print } = await runs[bench](given, io);
    // First what cannot fail: a measurement takes long.
    if (given.json) io.stdout.write(`${JSON.stringify(result)}\n`);
    else print();
    if (outputPath !== undefined)
      writeOutputFile(outputPath, `${JSON.stringify(result, undefined, 2)}\n`, '--output');
    if (picturePath !== undefined) writeOutputFile(picturePath, picture(), '--picture');
    return ExitCode.ok;
  },
});

function benchNamed(what: string, given: Options): Bench {
  const bench = benches.find((name) => name === what);
  if (bench === undefined) {
    throw new UsageError(
      'INVALID_COMMAND',
      `tributary bench has no benchmark ${JSON.stringify(what)}; it has ${benches.join(', ')}.${didYouMean(what, benches)}`,
      { bench: what },
    );
  }
  const own: readonly string[] = ownOptions[bench];
  for (const other of benches) {
    const foreign = ownOptions[other].find((name) => given[name] !== undefined && !own.includes(name));
    if (foreign === undefined) continue;
    throw new UsageError(
      'INVALID_COMMAND',
      `--${foreign} is an option of tributary bench ${other}, not of ${bench}.`,
      { bench, option: foreign },
    );
  }
  return bench;
}
