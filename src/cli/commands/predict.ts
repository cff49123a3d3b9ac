/** `tributary predict`: what a trained model answers for texts, for an image, or as the continuation of a text. */
import { existsSync, readFileSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { UsageError } from '../../base/index.ts';
import { Dataset, readIdx } from '../../data/index.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import { percent } from '../format.ts';
import { generate } from '../generate.ts';
import { bold, ExitCode, type CommandIo } from '../io.ts';
import { drawPicture } from '../picture.ts';
import { modelTrustOptions, trustOf } from '../run-trust.ts';
import { encodeOne } from '../task.ts';
import { dataOf, openTrainedModel, type TrainedModel } from '../trained-model.ts';

const options = {
  top: { kind: 'count', value: 'K', help: 'How many labels to show. Default 3.' },
  index: { kind: 'count', help: 'Which image: of the IDX file given, else of the test data. Default 0.' },
  length: { kind: 'count', help: 'Language models: how many units to write. Default 200.' },
  temperature: {
    kind: 'number',
    value: 'T',
    help: 'Language models: 0 takes the likeliest, 1 as learned. Default 0.8.',
  },
  seed: { kind: 'count', help: 'Language models: decides what is drawn. Default 0.' },
  ...modelTrustOptions,
} as const satisfies OptionSpecs;

type Options = OptionValues<typeof options> & { readonly json?: boolean };

export const predictCommand = defineCommand({
  name: 'predict',
  summary: 'Ask a trained model: label texts or an image, or continue a text.',
  operands: '<run folder> [text... | file | -]',
  operandCount: [1, Infinity],
  options,
  details: [
    'A file or standard input (-) holds one text a line. Language models take the words as the beginning.',
    'A single word that looks like a path (a slash, .txt, .csv, .tsv, .json) must be a file.',
  ].join('\n'),
  examples: [
    'tributary predict runs/mnist --index 7',
    'tributary predict runs/trec6 "Who wrote Hamlet ?" "How far is the moon ?"',
    'cat questions.txt | tributary predict runs/trec6 - --json',
    'tributary predict runs/gpt "It was a" --length 300 --temperature 0.7',
  ],
  run: async ([path, ...words], given: Options, io) => {
    const trained = await openTrainedModel(resolve(io.cwd, path!), { maxBatch: 1, ...trustOf(given, io) });
    try {
      for (const { path: bad, reason } of trained.skipped)
        io.stderr.write(`Skipped the checkpoint ${bad}: ${reason}\n`);
      if (trained.kind === 'images') predictImage(trained, words, given, io);
      else if (trained.kind === 'text') predictTexts(trained, await readTexts(path!, words, io), given, io);
      else continueText(trained, await readPrompt(words, io), given, io);
      return ExitCode.ok;
    } finally {
      trained.close();
    }
  },
});

/** Arguments as they are, or the lines of a file or of standard input. */
async function readTexts(run: string, words: readonly string[], io: CommandIo): Promise<string[]> {
  const [first] = words;
  if (first === undefined) {
    throw new UsageError(
      'INVALID_COMMAND',
      'tributary predict needs a text, a file of texts or - for standard input. See: tributary predict --help',
    );
  }
  const text =
    first === '-' && words.length === 1
      ? await io.readInput()
      : words.length === 1
        ? readIfFile(first, run, io)
        : undefined;
  if (text === undefined) return [...words];
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== '');
  if (lines.length > 0) return lines;
  throw new UsageError(
    'INVALID_DATA',
    `${first === '-' ? 'Standard input' : first} holds no text. Give one text a line.`,
  );
}

async function readPrompt(words: readonly string[], io: CommandIo): Promise<string> {
  return words.length === 1 && words[0] === '-' ? (await io.readInput()).trimEnd() : words.join(' ');
}

/** What looks like a path is not labelled as if it were a text: its name was mistyped more likely. */
function readIfFile(word: string, run: string, io: CommandIo): string | undefined {
  const path = resolve(io.cwd, word);
  if (existsSync(path) && statSync(path).isFile()) return readFileSync(path, 'utf8');
  if (!/^\S*(?:\/\S*|\.(?:txt|csv|tsv|json))$/i.test(word)) return undefined;
  throw new UsageError(
    'FILE_NOT_FOUND',
    `There is no file ${path}. Check the path; if it is a text, give it by standard input: tributary predict ${run} -`,
    { path },
  );
}

interface Score {
  readonly label: string;
  readonly probability: number;
}

/** The likeliest labels for the sample that is in the model's inputs. */
function scores(trained: TrainedModel, top: number): Score[] {
  const evaluator = trained.replica.evaluator(['logits'], trained.average);
  try {
    const logits = Array.from(evaluator.run(1)[0]!.view as Float32Array);
    const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    const weights = logits.map((logit) => Math.exp(logit - largest));
    const sum = weights.reduce((a, b) => a + b, 0);
    return weights
      .map((weight, id) => ({ label: trained.labels[id] ?? String(id), probability: weight / sum }))
      .sort((a, b) => b.probability - a.probability)
      .slice(0, Math.max(1, top));
  } finally {
    evaluator.close();
  }
}

function printScores(list: readonly Score[], io: CommandIo): string {
  const [best, ...others] = list.map(({ label, probability }) => `${label} ${percent(probability)}`);
  return [bold(io, best!), ...others].join('   ');
}

function predictTexts(
  trained: TrainedModel,
  texts: readonly string[],
  { top = 3, json = false }: Options,
  io: CommandIo,
): void {
  const [input] = [...trained.replica.memory.inputs]
    .filter(([name]) => name !== 'labels')
    .map(([, region]) => region);
  for (const text of texts) {
    encodeOne(text, dataOf(trained, 'text-csv'), trained.words.vocabulary!, input!.view as Int32Array);
    const labels = scores(trained, top);
    if (json) io.stdout.write(`${JSON.stringify({ text, label: labels[0]!.label, labels })}\n`);
    else io.stdout.write(`${texts.length > 1 ? `${text}\n  ` : ''}${printScores(labels, io)}\n`);
  }
}

function predictImage(trained: TrainedModel, words: readonly string[], given: Options, io: CommandIo): void {
  const { top = 3, json = false, index = 0 } = given;
  const dataset = words[0] === undefined ? testImages(trained) : imagesOf(resolve(io.cwd, words[0]), trained);
  if (index >= dataset.length) {
    throw new UsageError(
      'INVALID_COMMAND',
      `There is no image ${index}; there are ${dataset.length}. Use --index 0 to ${dataset.length - 1}.`,
      {
        index,
        length: dataset.length,
      },
    );
  }
  const adapted = trained.built.adapt(dataset);
  for (const [name, region] of trained.replica.memory.inputs) {
    if (name !== 'labels') adapted.read([index], name, region.view as Float32Array);
  }
  const labels = scores(trained, top);
  const truth = words[0] === undefined ? trained.labels[dataset.column('labels').data[index]!] : undefined;
  if (json) {
    io.stdout.write(
      `${JSON.stringify({ index, label: labels[0]!.label, labels, ...(truth === undefined ? {} : { truth }) })}\n`,
    );
    return;
  }
  const { data, sampleShape } = dataset.column('x');
  const [height, width] = sampleShape.slice(-2) as [number, number];
  const size = sampleShape.reduce((a, b) => a * b, 1);
  const pixels = Array.from(
    data.subarray(index * size, index * size + height * width),
    (value) => value / 255,
  );
  for (const line of drawPicture(pixels, height, width)) io.stdout.write(`${line}\n`);
  const verdict =
    truth === undefined ? '' : truth === labels[0]!.label ? '  (right)' : `  (wrong: it is ${truth})`;
  io.stdout.write(`\n${printScores(labels, io)}${verdict}\n`);
}

function testImages(trained: TrainedModel): Dataset {
  const { train, test } = trained.loadTask();
  return test ?? train;
}

/** Images of a file under the scale of the run's data; they have no labels, so any will do. */
function imagesOf(path: string, trained: TrainedModel): Dataset {
  const { dtype, shape, data } = readIdx(path);
  const reference = testImages(trained).column('x');
  const { sampleShape, scale } = reference;
  const inputSize = sampleShape.reduce((a, b) => a * b, 1);
  const size = shape.slice(1).reduce((a, b) => a * b, 1);
  if (dtype !== 'uint8' || size !== inputSize) {
    throw new UsageError(
      'INVALID_DATA',
      `${path} holds ${dtype} [${shape.join(', ')}]; the model takes uint8 images of [${sampleShape.join(', ')}]. Give fitting images.`,
      { path, expected: sampleShape, actual: shape },
    );
  }
  return new Dataset([
    { name: 'x', data, sampleShape, ...(scale ? { scale } : {}) },
    { name: 'labels', data: new Int32Array(shape[0]!) },
  ]);
}

function continueText(trained: TrainedModel, prompt: string, given: Options, io: CommandIo): void {
  const { length = 200, temperature = 0.8, seed = 0, json = false } = given;
  const { unit = 'char' } = dataOf(trained, 'text');
  const { average, replica } = trained;
  const pieces = generate(replica, trained.words.vocabulary!, prompt, {
    length,
    temperature,
    seed,
    unit,
    average,
    signal: io.signal,
  });
  if (json) {
    io.stdout.write(`${JSON.stringify({ prompt, text: [...pieces].join('') })}\n`);
    return;
  }
  io.stdout.write(bold(io, prompt) + (unit === 'word' && prompt !== '' ? ' ' : ''));
  for (const piece of pieces) io.stdout.write(piece);
  io.stdout.write('\n');
}
