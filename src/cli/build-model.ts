/**
 * From the configuration and the facts of the data to a model ready for `fit`: from the catalogue, a function or an
 * ONNX file, with clipping, weight decay and moving average added. Trains nothing.
 * Invariant: the model's inputs are columns of the datasets returned with it.
 */
import { readFileSync } from 'node:fs';
import { UsageError } from '../base/index.ts';
import { sampleSize, withNegatives, type Dataset } from '../data/index.ts';
import {
  clipByGlobalNorm,
  clipByValue,
  crossEntropy,
  importOnnx,
  isBatch,
  movingAverage,
  N,
  printShape,
  weightDecay,
  type Model,
  type Tensor,
} from '../graph/index.ts';
import { findModel, models, type ModelEntry } from '../models/index.ts';
import type { NamedModelConfig, OnnxModelConfig, ResolvedConfig } from './config.ts';
import type { Task } from './task.ts';

/** The moving average that `movingAverage` of the configuration keeps. */
export const AVERAGE = 'average';

export interface BuiltModel {
  /** What is trained. Its outputs are those that are computed on the test data after every epoch. */
  readonly model: Model;
  /** The same with all outputs: what a trained model is asked for. */
  readonly whole: Model;
  /** Names of the outputs in an exported file. */
  readonly exports: Readonly<Record<string, Tensor>>;
  /** The datasets with columns named and shaped as the model's inputs. */
  readonly adapt: (dataset: Dataset) => Dataset;
  /** Whether the loss is that among words drawn for each sample, not among all words. */
  readonly hasSampledLoss: boolean;
  /** What the user should know about the model. */
  readonly notes: readonly string[];
}

export function buildModel(config: ResolvedConfig, task: Pick<Task, 'kind' | 'facts'>): BuiltModel {
  const built = create(config, task);
  const { graph } = built.model;
  // As with most optimizers' own decay, clipping sees the bare gradients.
  if (config.clipValue !== undefined) clipByValue(graph, config.clipValue);
  if (config.clipGlobalNorm !== undefined) clipByGlobalNorm(graph, config.clipGlobalNorm);
  if (config.weightDecay !== undefined) weightDecay(graph, config.weightDecay);
  if (config.movingAverage !== undefined) movingAverage(graph, config.movingAverage, { name: AVERAGE });
  return built;
}

function create({ model, data, seed }: ResolvedConfig, task: Pick<Task, 'kind' | 'facts'>): BuiltModel {
  if ('onnx' in model) return fromOnnx(model as OnnxModelConfig, task);
  const whole =
    'build' in model && typeof model.build === 'function'
      ? model.build(task.facts)
      : fromCatalogue(model as NamedModelConfig, data.kind, task);
  const drawn = whole.graph.inputs.get('negatives')?.shape[1];
  const { vocabulary } = task.facts;
  if (typeof drawn === 'number' && vocabulary !== undefined) return sampled(whole, drawn, vocabulary, seed);
  const rest = { exports: whole.outputs, adapt: (dataset: Dataset) => dataset, hasSampledLoss: false };
  return { model: whole, whole, ...rest, notes: [] };
}

/**
 * A model that tells targets from words drawn for each sample, so that it need not compute with all words. That would be lost if
 * it were evaluated among all of them after every epoch.
 */
function sampled(whole: Model, drawn: number, vocabulary: number, seed: number): BuiltModel {
  return {
    ...{ model: { ...whole, outputs: {} }, whole, exports: whole.outputs, hasSampledLoss: true },
    adapt: (dataset) => withNegatives(dataset, { vocabulary, drawn, seed }),
    notes: [
      `Losses are those among ${drawn} words drawn for each sample, also on test data; tributary evaluate gives the loss among all ${vocabulary} words.`,
    ],
  };
}

type DataKind = ResolvedConfig['data']['kind'];

/** What a model of each kind is trained on, and what is to be said where it is another. */
const KINDS: Readonly<Record<Task['kind'], { data: string; kinds: readonly DataKind[]; models: string }>> = {
  images: { data: 'images', kinds: ['mnist', 'idx'], models: 'a model of images' },
  text: { data: 'texts with labels', kinds: ['text-csv'], models: 'a text classifier' },
  'language-model': { data: 'texts without labels', kinds: ['text'], models: 'a language model' },
};

/** By what its options say of the data. */
function kindOf({ options: { shape } }: ModelEntry): Task['kind'] {
  if ('inputShape' in shape) return 'images';
  return 'classes' in shape ? 'text' : 'language-model';
}

/** Before its options are checked, which the data were to fill in. */
function checkKind(name: string, dataKind: DataKind, kind: Task['kind']): void {
  const needed = kindOf(findModel(name));
  if (needed === kind) return;
  const kinds = KINDS[needed].kinds.map((one) => `'${one}'`).join(' or ');
  const fitting = Object.entries(models).flatMap(([other, entry]) => (kindOf(entry) === kind ? [other] : []));
  throw new UsageError(
    'INVALID_CONFIG',
    `model '${name}' needs ${KINDS[needed].data}, and data.kind '${dataKind}' gives ${KINDS[kind].data}: ` +
      `use kind ${kinds}, or ${KINDS[kind].models} (${fitting.join(', ')}).`,
    { model: name, kind: dataKind, expected: KINDS[needed].kinds },
  );
}

function fromCatalogue(
  { name, ...rest }: NamedModelConfig,
  dataKind: DataKind,
  { kind, facts }: Pick<Task, 'kind' | 'facts'>,
): Model {
  const options: Readonly<Record<string, unknown>> = rest;
  checkKind(name, dataKind, kind);
  const entry = findModel(name);
  const decided = Object.entries(facts).filter(([field]) => field in entry.options.shape);
  for (const [field, value] of decided) {
    if (options[field] === undefined || JSON.stringify(options[field]) === JSON.stringify(value)) continue;
    throw new UsageError(
      'INVALID_CONFIG',
      `model.${field} is ${JSON.stringify(options[field])}, but the data has ${JSON.stringify(value)}. Leave the field out.`,
      { field: `model.${field}`, expected: value, actual: options[field] },
    );
  }
  return entry.build({ ...options, ...Object.fromEntries(decided) });
}

function fromOnnx(config: OnnxModelConfig, task: Pick<Task, 'kind'>): BuiltModel {
  const { onnx: file, dropout = true } = config;
  const imported = importOnnx(readModelFile(file), { source: file, dropout });
  const notes = [...imported.notes];
  const name = chooseOutput(config, Object.keys(imported.outputs));
  const output = imported.outputs[name]!;
  let logits = output;
  if (output.node.op === 'softmax') {
    logits = output.node.inputs[0]!;
    notes.push(`The output ${name} is a softmax; the loss is computed on what goes into it.`);
  }
  const { graph } = imported;
  const [input, ...others] = graph.inputs.values();
  if (!input || others.length > 0) {
    const names = [...graph.inputs.keys()].join(', ') || 'none';
    throw new UsageError(
      'INVALID_CONFIG',
      `${file} has the inputs ${names}; a model for training here has exactly one.`,
      {
        file,
        inputs: names,
      },
    );
  }
  const sequence = task.kind === 'language-model';
  const labelName = sequence ? 'targets' : 'labels';
  const labels = graph.input(labelName, sequence ? output.shape.slice(0, -1) : [N], 'int32');
  const model = { graph, loss: crossEntropy(logits, labels), outputs: { logits } };
  return {
    ...{ model, whole: model, exports: { [name]: output }, hasSampledLoss: false, notes },
    adapt: (dataset) => adaptColumns(dataset, input, labelName, file),
  };
}

function readModelFile(file: string): Uint8Array {
  try {
    return readFileSync(file);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new UsageError(
      'FILE_NOT_FOUND',
      `The model ${file} cannot be read: ${reason}. Check the path.`,
      { file },
      cause,
    );
  }
}

function chooseOutput({ onnx: file, output }: OnnxModelConfig, known: readonly string[]): string {
  const chosen = output ?? (known.includes('logits') ? 'logits' : known.length === 1 ? known[0] : undefined);
  if (chosen !== undefined && known.includes(chosen)) return chosen;
  const fault =
    output === undefined ? 'model.output is missing' : `model.output is ${JSON.stringify(output)}`;
  throw new UsageError(
    'INVALID_CONFIG',
    `${fault}; ${file} has the outputs ${known.join(', ')}. Name one of these.`,
    {
      file,
      known,
    },
  );
}

/** The data column under the name and in the shape of the file's input; the bytes are shared. */
function adaptColumns(dataset: Dataset, input: Tensor, labelName: string, file: string): Dataset {
  return dataset.withColumns(
    dataset.columns.map((column) => {
      if (column.name === labelName) return column;
      const [batch, ...sample] = input.shape;
      const wanted = sample.map((dim) => (isBatch(dim) ? NaN : dim));
      const dtype = column.dtype === 'int32' ? 'int32' : 'float32';
      const fits =
        batch !== undefined && isBatch(batch) && sampleSize(wanted) === sampleSize(column.sampleShape);
      if (fits && input.dtype === dtype) return { ...column, name: input.label, sampleShape: wanted };
      throw new UsageError(
        'SHAPE_MISMATCH',
        `${file}: the input ${input.label} is ${input.dtype} ${printShape(input.shape)}, a sample of the data is ${dtype} [${column.sampleShape.join(', ')}]. Use data that fits the model.`,
        { file, input: input.label },
      );
    }),
  );
}
