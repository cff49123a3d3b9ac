/**
 * Plain text for language models: the text is a sequence of units (characters, or words with `<eos>` at each line
 * end, the convention of the Penn Treebank files), cut into consecutive windows that do not overlap.
 * Invariant: the target of a position is the unit that follows it in the text.
 */
import { UsageError } from '../base/index.ts';
import { Dataset, allocate } from './dataset.ts';
import { checkLength } from './text-classification.ts';
import { readText } from './text-file.ts';
import { Vocabulary } from './vocabulary.ts';

export type TextUnit = 'char' | 'word';
export type TextSource = { readonly path: string } | { readonly text: string };

export interface LanguageModelTextOptions {
  /** 'char': Unicode code points, line ends included; 'word': words between white space, `<eos>` at each line end. */
  readonly unit: TextUnit;
  /** The units of each sample. */
  readonly sequenceLength: number;
  /** Give that of the training text for all others. Default: built from this text, every unit known. */
  readonly vocabulary?: Vocabulary;
}

export interface LanguageModelText {
  /** The columns `tokens` and `targets`, int32 [sequenceLength]. */
  readonly dataset: Dataset;
  readonly vocabulary: Vocabulary;
}

export function readLanguageModelText(
  source: TextSource,
  options: LanguageModelTextOptions,
): LanguageModelText {
  const { unit, sequenceLength } = options;
  checkLength('sequenceLength', sequenceLength);
  const name = 'path' in source ? source.path : 'the text';
  const text = 'path' in source ? readText(source.path) : source.text;
  const vocabulary = options.vocabulary ?? Vocabulary.build([unitsOf(text, unit)]);

  // A unit takes at least one UTF-16 code unit of the text.
  const ids = new Int32Array(text.length);
  let count = 0;
  for (const one of unitsOf(text, unit)) ids[count++] = vocabulary.id(one);
  const windows = Math.floor((count - 1) / sequenceLength);
  if (windows < 1) {
    throw new UsageError(
      'INVALID_DATA',
      `${name} has ${count} ${unit}(s); one sample of sequenceLength ${sequenceLength} needs ${sequenceLength + 1}. ` +
        'Give more text or a shorter sequenceLength.',
      { source: name, expected: sequenceLength + 1, actual: count },
    );
  }
  const elements = windows * sequenceLength;
  const tokens = allocate('int32', elements);
  const targets = allocate('int32', elements);
  tokens.set(ids.subarray(0, elements));
  targets.set(ids.subarray(1, elements + 1));
  const sampleShape = [sequenceLength];
  const dataset = new Dataset([
    { name: 'tokens', data: tokens, sampleShape },
    { name: 'targets', data: targets, sampleShape },
  ]);
  return { dataset, vocabulary };
}

/** A generator, so that a long text never exists as an array of strings. */
export function* unitsOf(text: string, unit: TextUnit): Generator<string> {
  if (unit === 'char') {
    yield* text;
    return;
  }
  for (let start = 0; start < text.length;) {
    const newline = text.indexOf('\n', start);
    const end = newline === -1 ? text.length : newline;
    for (const word of text.slice(start, end).split(/\s+/u)) {
      if (word !== '') yield word;
    }
    if (newline !== -1) yield '<eos>';
    start = end + 1;
  }
}
