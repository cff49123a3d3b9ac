/**
 * A model with the parameters of a run's newest good checkpoint, for evaluation, prediction and export. It is never
 * trained further; `tributary train --resume` does that.
 */
import { UsageError } from '../base/index.ts';
import { OnnxCompute } from '../compute/index.ts';
import { exportOnnx, type Tensor } from '../graph/index.ts';
import { SharedSpace } from '../memory/index.ts';
import { CheckpointStore, Replica, type SkippedCheckpoint } from '../runtime/index.ts';
import { AVERAGE, buildModel, type BuiltModel } from './build-model.ts';
import type { DataFacts, ResolvedConfig, TextCsvData, TextData } from './config.ts';
import { RunFolder } from './run-folder.ts';
import type { Trust } from './run-trust.ts';
import { DEFAULT_SEQUENCE_LENGTH, loadTask, type KnownWords, type Task } from './task.ts';

export interface TrainedModel {
  readonly folder: RunFolder;
  readonly config: ResolvedConfig;
  readonly kind: Task['kind'];
  readonly facts: DataFacts;
  readonly words: KnownWords;
  /** Names of the classes by id, where there are classes. */
  readonly labels: readonly string[];
  readonly built: BuiltModel;
  readonly replica: Replica;
  /** The moving average to use, if the run kept one. */
  readonly average: string | undefined;
  /** Newer checkpoints that could not be read. */
  readonly skipped: readonly SkippedCheckpoint[];
  /** Reads the run's own data. */
  loadTask(): Task;
  close(): void;
}

export interface OpenOptions extends Trust {
  /** The largest batch that will be given. Default: that of the training, or 1 if it was on drawn words. */
  readonly maxBatch?: number;
}

export async function openTrainedModel(path: string, options: OpenOptions = {}): Promise<TrainedModel> {
  const folder = new RunFolder(path);
  const config = await folder.readConfig(options);
  const words = folder.readWords();
  const load = (): Task => loadTask(config.data, config.seed, words);
  const { kind, facts } = describeData(config, words) ?? load();
  const built = buildModel(config, { kind, facts });
  const { checkpoint, skipped } = new CheckpointStore(folder.checkpoints).latest();
  if (!checkpoint) {
    const reason = skipped[0] ? ` (${skipped[0].path}: ${skipped[0].reason})` : '';
    throw new UsageError(
      'FILE_NOT_FOUND',
      `${folder.checkpoints} has no checkpoint that can be read${reason}. Train first: tributary train ${path} --resume`,
      { path: folder.checkpoints },
    );
  }
  const compute = new OnnxCompute({ threads: config.threads ?? 1, provider: config.provider ?? 'cpu' });
  let replica: Replica | undefined;
  const close = () => {
    replica?.close();
    compute.close();
  };
  try {
    // Of a model that was trained on drawn words, the scores of all words are many for one sample already.
    const { maxBatch = built.hasSampledLoss ? 1 : config.batchSize } = options;
    replica = new Replica(built.whole, {
      compute,
      space: SharedSpace.create(),
      optimizer: config.optimizer,
      maxBatch,
      seed: config.seed,
    });
    replica.restore(checkpoint, checkpoint.step);
  } catch (error) {
    close();
    throw error;
  }
  const average = config.movingAverage === undefined ? undefined : AVERAGE;
  const labels = words.labelSet?.labels ?? Array.from({ length: facts.classes ?? 0 }, (_, id) => String(id));
  return {
    folder,
    config,
    kind,
    facts,
    words,
    labels,
    built,
    replica,
    average,
    skipped,
    loadTask: load,
    close,
  };
}

/** The facts without reading the data, where the run's files tell them. */
function describeData({ data }: ResolvedConfig, words: KnownWords): Pick<Task, 'kind' | 'facts'> | undefined {
  const { vocabulary, labelSet } = words;
  if (data.kind === 'mnist') return { kind: 'images', facts: { inputShape: [1, 28, 28], classes: 10 } };
  if (data.kind === 'text-csv' && vocabulary && labelSet && data.length !== undefined) {
    return {
      kind: 'text',
      facts: { classes: labelSet.size, vocabulary: vocabulary.size, length: data.length },
    };
  }
  if (data.kind === 'text' && vocabulary) {
    const length = data.sequenceLength ?? DEFAULT_SEQUENCE_LENGTH;
    return { kind: 'language-model', facts: { vocabulary: vocabulary.size, length } };
  }
  return undefined;
}

/** The model as an ONNX file, labels included. */
export function exportTrained(
  built: BuiltModel,
  replica: Replica,
  options: { readonly average: string | undefined; readonly labels: readonly string[] },
): Uint8Array {
  const valueOf = (source: Tensor) => replica.memory.source(source, options.average).view as Float32Array;
  const metadata: Record<string, string> = {};
  if (options.labels.length > 0) metadata['labels'] = JSON.stringify(options.labels);
  return exportOnnx(built.exports, valueOf, { metadata });
}

/** The run's data must be of this kind. */
export function dataOf<K extends 'text' | 'text-csv'>(
  { config }: TrainedModel,
  kind: K,
): K extends 'text' ? TextData : TextCsvData {
  if (config.data.kind !== kind) {
    throw new UsageError('INVALID_ARGUMENT', `The run's data is of kind ${config.data.kind}, not ${kind}.`);
  }
  return config.data as never;
}
