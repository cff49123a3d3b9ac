/** Texts and labels to a dataset of token ids and label ids. Builds no vocabulary: that comes from training texts only. */
import { UsageError } from '../base/index.ts';
import { Dataset, allocate } from './dataset.ts';
import type { LabelSet } from './label-set.ts';
import { Tokenizer } from './tokenizer.ts';
import type { Vocabulary } from './vocabulary.ts';

export interface EncodeTextOptions {
  readonly vocabulary: Vocabulary;
  readonly labelSet: LabelSet;
  /** The tokens of each sample: longer texts are cut off, shorter ones padded at the end. */
  readonly length: number;
  /** Must be the one the vocabulary was built with. Default: a `Tokenizer` with its defaults. */
  readonly tokenizer?: Tokenizer;
  /** The file of the texts, for errors. Default: not named. */
  readonly file?: string;
  /** The line (from 1) of each text, for errors. Default: texts are lines, counted from 1. */
  readonly lines?: readonly number[];
}

/** Gives the columns `tokens` (int32 [length]) and `labels` (int32). */
export function encodeText(
  texts: readonly string[],
  labels: readonly string[],
  options: EncodeTextOptions,
): Dataset {
  const { vocabulary, labelSet, length, tokenizer = new Tokenizer(), file, lines } = options;
  if (texts.length !== labels.length || texts.length === 0) {
    throw new UsageError(
      'INVALID_DATA',
      `There are ${texts.length} texts and ${labels.length} labels; give one label for each of at least one text.`,
      { texts: texts.length, labels: labels.length },
    );
  }
  checkLength('length', length);
  const ids = Int32Array.from(labels, (label, i) =>
    labelSet.id(label, { line: lines?.[i] ?? i + 1, ...(file === undefined ? {} : { file }) }),
  );
  const tokens = allocate('int32', texts.length * length) as Int32Array;
  for (const [i, text] of texts.entries()) {
    vocabulary.encode(tokenizer.tokenize(text), tokens.subarray(i * length, (i + 1) * length));
  }
  return new Dataset([
    { name: 'tokens', data: tokens, sampleShape: [length] },
    { name: 'labels', data: ids },
  ]);
}

export function checkLength(option: string, length: number): void {
  if (Number.isInteger(length) && length > 0) return;
  throw new UsageError('INVALID_ARGUMENT', `${option} is ${length}; give a whole number above 0.`, {
    [option]: length,
  });
}
