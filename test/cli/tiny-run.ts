/** A tiny text classifier: data and configuration that train in moments. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Random } from '../../src/base/index.ts';

const words: Record<string, readonly string[]> = {
  fruit: ['apple', 'pear', 'plum', 'cherry', 'fig'],
  metal: ['iron', 'copper', 'zinc', 'lead', 'tin'],
  bird: ['crow', 'robin', 'wren', 'owl', 'finch'],
};

export function rows(count: number, seed: number): string {
  const random = new Random(seed);
  const labels = Object.keys(words);
  return Array.from({ length: count }, (_, i) => {
    const label = labels[i % labels.length]!;
    const chosen = Array.from({ length: 4 }, () => words[label]![random.below(5)]!);
    return `the ${chosen.join(' ')},${label}\n`;
  }).join('');
}

export interface TinyOptions {
  /** Merged over the configuration. */
  readonly config?: object;
  /** Contents of the files. */
  readonly train?: string;
  readonly test?: string;
}

/** Writes train.csv, test.csv and tiny.json into the folder; gives the path of the configuration. */
export function writeTinyRun(folder: string, options: TinyOptions = {}): string {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'train.csv'), options.train ?? rows(60, 1));
  writeFileSync(join(folder, 'test.csv'), options.test ?? rows(15, 2));
  const config = {
    model: { name: 'text-cnn', size: 8, widths: [2, 3], filters: 8 },
    data: { kind: 'text-csv', train: 'train.csv', test: 'test.csv' },
    optimizer: { name: 'adam', lr: 0.01 },
    schedule: 'cosine',
    batchSize: 8,
    epochs: 2,
    seed: 3,
    // Results can be compared bit by bit, and nothing is tried out first.
    on: { learners: 1 },
    ...options.config,
  };
  const path = join(folder, 'tiny.json');
  writeFileSync(path, JSON.stringify(config));
  return path;
}
