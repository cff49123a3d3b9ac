/** The ready-made runs of `tributary train <name>`: settings that work, on data that is installed or given by --data. */
import { existsSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { UsageError } from '../base/index.ts';
import { recipes, type RecipeName, type TrainingSettings } from '../models/index.ts';
import type { TrainConfig } from './config.ts';

export interface Example {
  readonly summary: string;
  /** `data` is the absolute path given by --data, if any. */
  configure(data: string | undefined): TrainConfig;
}

function textExample(name: Exclude<RecipeName, 'mnist'>, summary: string): Example {
  const { length, minCount, lowerCase, ...recipe } = recipes[name];
  return {
    summary,
    configure: (data) => {
      const folder = requireData(name, data, `a folder with ${name}-train.csv and ${name}-test.csv`);
      const [train, test] = [join(folder, `${name}-train.csv`), join(folder, `${name}-test.csv`)];
      const model = { name: recipe.model, ...recipe.options };
      return {
        ...settingsOf(recipe),
        model,
        data: { kind: 'text-csv', train, test, length, minCount, lowerCase },
      };
    },
  };
}

/** How a recipe trains, in the terms of a configuration; recipes let the rate fall along half a cosine. */
function settingsOf({ batchSize, epochs, optimizer, sparseUpdates }: TrainingSettings) {
  return { batchSize, epochs, optimizer, sparseUpdates, schedule: 'cosine' } as const;
}

function languageExample(name: string, summary: string, settings: Omit<TrainConfig, 'data'>): Example {
  return {
    summary,
    configure: (data) => {
      const given = requireData(name, data, 'a text file, or a folder with train.txt and perhaps test.txt');
      const isFolder = statSync(given, { throwIfNoEntry: false })?.isDirectory() ?? false;
      const test = join(given, 'test.txt');
      return {
        ...settings,
        data: {
          kind: 'text',
          train: isFolder ? join(given, 'train.txt') : given,
          ...(isFolder && existsSync(test) ? { test } : {}),
        },
      };
    },
  };
}

function requireData(name: string, data: string | undefined, what: string): string {
  if (data !== undefined) return data;
  throw new UsageError(
    'INVALID_COMMAND',
    `The example ${name} needs data: ${what}. Give it by --data, or set TRIBUTARY_DATA.`,
    { example: name },
  );
}

export const examples: Readonly<Record<string, Example>> = {
  mnist: {
    summary: 'handwritten digits, a small convolutional network',
    configure: (data) => ({
      ...settingsOf(recipes.mnist),
      model: { name: recipes.mnist.model, ...recipes.mnist.options },
      data: { kind: 'mnist', ...(data === undefined ? {} : { directory: data }) },
    }),
  },
  trec6: textExample('trec6', 'types of questions, 6 labels'),
  'movie-reviews': textExample('movie-reviews', 'positive and negative sentences'),
  banking77: textExample('banking77', 'intents of bank customers, 77 labels'),
  'lstm-lm': languageExample('lstm-lm', 'LSTM that continues a text', {
    model: { name: 'lstm-lm', units: 256 },
    optimizer: { name: 'adam', lr: 0.002 },
    batchSize: 16,
    epochs: 5,
  }),
  gpt: languageExample('gpt', 'small GPT that continues a text', {
    model: { name: 'gpt', width: 128, layers: 4 },
    optimizer: { name: 'adamw', lr: 0.001 },
    schedule: 'warmup_cosine',
    batchSize: 16,
    epochs: 5,
  }),
};

/** --data as an absolute path; the environment's folder where there is none. */
export function dataPath(
  given: string | undefined,
  env: Readonly<Record<string, string | undefined>>,
  cwd: string,
): string | undefined {
  const path = given ?? env['TRIBUTARY_DATA'];
  return path === undefined || path === '' ? undefined : resolve(cwd, path);
}
