/** The models by name, for configuration files and command lines; each validates and documents its own options. */
import type { z } from 'zod';
import { UsageError } from '../base/index.ts';
import type { Model } from '../graph/index.ts';
import { gpt, gptOptions } from './gpt.ts';
import { lenet, lenetOptions } from './lenet.ts';
import { lstmLanguageModel, lstmLanguageModelOptions } from './lstm-language-model.ts';
import { mlp, mlpOptions } from './mlp.ts';
import { readOptions } from './options.ts';
import { resnet, resnetOptions } from './resnet.ts';
import { sampledLanguageModel, sampledLanguageModelOptions } from './sampled-language-model.ts';
import { textCnn, textCnnOptions } from './text-cnn.ts';
import { transformerClassifier, transformerClassifierOptions } from './transformer-classifier.ts';

export interface ModelEntry<Options extends z.ZodObject = z.ZodObject> {
  /** One sentence. */
  readonly summary: string;
  /** The fields with types, defaults and descriptions. */
  readonly options: Options;
  /** Checks the options (INVALID_CONFIG) and builds the model. */
  build(options: unknown): Model;
}

function entry<S extends z.ZodObject>(
  name: string,
  summary: string,
  options: S,
  build: (options: z.input<S>) => Model,
): ModelEntry<S> {
  return Object.freeze({
    summary,
    options,
    build: (given: unknown) => build(readOptions(name, options, given) as z.input<S>),
  });
}

export const models = Object.freeze({
  mlp: entry('mlp', 'Dense layers with relu, for inputs of any shape.', mlpOptions, mlp),
  lenet: entry(
    'lenet',
    'Two convolutions with pooling and a dense layer, for small images.',
    lenetOptions,
    lenet,
  ),
  resnet: entry(
    'resnet',
    'Residual network with batch normalisation in three stages, for small images.',
    resnetOptions,
    resnet,
  ),
  'text-cnn': entry(
    'text-cnn',
    "Kim's convolutional network for classifying sentences.",
    textCnnOptions,
    textCnn,
  ),
  'lstm-lm': entry(
    'lstm-lm',
    'LSTM language model: predicts the next token.',
    lstmLanguageModelOptions,
    lstmLanguageModel,
  ),
  'sampled-lm': entry(
    'sampled-lm',
    'LSTM language model for large vocabularies: trained by sampled softmax on words drawn for each sample.',
    sampledLanguageModelOptions,
    sampledLanguageModel,
  ),
  transformer: entry(
    'transformer',
    'Transformer encoder for classifying texts.',
    transformerClassifierOptions,
    transformerClassifier,
  ),
  gpt: entry('gpt', 'Small pre-norm GPT with causal attention: predicts the next token.', gptOptions, gpt),
});

export type ModelName = keyof typeof models;

/** What a model takes, as its schema says. */
export type ModelOptions<Name extends ModelName> = z.input<(typeof models)[Name]['options']>;

/** The entry of a name that comes from outside, or INVALID_CONFIG with the names there are. */
export function findModel(name: string): ModelEntry {
  if (Object.hasOwn(models, name)) return models[name as ModelName];
  const known = Object.keys(models).join(', ');
  throw new UsageError('INVALID_CONFIG', `There is no model '${name}'; choose one of ${known}.`, {
    name,
    known,
  });
}
