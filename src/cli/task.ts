/**
 * From the configuration's `data` to datasets, vocabulary and labels, and to the facts that the model needs of them.
 * A task knows how its samples read to people; it knows no model.
 * Invariant: vocabulary and labels come from the training data or from an earlier run, never from test data.
 */
import { UsageError } from '../base/index.ts';
import {
  encodeText,
  findMnist,
  LabelSet,
  loadMnist,
  readLanguageModelText,
  readTextCsv,
  Tokenizer,
  Vocabulary,
  type Dataset,
  type LabelledTexts,
  type TextCsvOptions,
} from '../data/index.ts';
import { readIdxImages } from './idx-images.ts';
import type { DataConfig, DataFacts, MnistData, TextCsvData, TextData } from './config.ts';

export interface Task {
  readonly kind: 'images' | 'text' | 'language-model';
  readonly train: Dataset;
  readonly test: Dataset | undefined;
  readonly facts: DataFacts;
  /** Names of the classes by id. */
  readonly labels?: readonly string[];
  readonly labelSet?: LabelSet;
  readonly vocabulary?: Vocabulary;
  /** The configuration with what was found out filled in: the length of texts. */
  readonly data: DataConfig;
}

/** What an earlier run of the same model fixed. */
export interface KnownWords {
  readonly vocabulary?: Vocabulary | undefined;
  readonly labelSet?: LabelSet | undefined;
}

const LONGEST_TEXT = 64;
export const DEFAULT_SEQUENCE_LENGTH = 64;

export function loadTask(data: DataConfig, seed: number, known: KnownWords = {}): Task {
  switch (data.kind) {
    case 'mnist': {
      const { train, test } = loadMnist(mnistFolder(data));
      const labels = Array.from({ length: 10 }, (_, digit) => String(digit));
      return { kind: 'images', train, test, facts: { inputShape: [1, 28, 28], classes: 10 }, labels, data };
    }
    case 'idx': {
      const train = readIdxImages(data, data.trainImages, data.trainLabels);
      const { testImages, testLabels } = data;
      if ((testImages === undefined) !== (testLabels === undefined)) {
        throw new UsageError(
          'INVALID_CONFIG',
          'data has one of testImages and testLabels; give both or neither.',
        );
      }
      const test =
        testImages === undefined
          ? undefined
          : readIdxImages(data, testImages, testLabels!, train.classes).dataset;
      const facts = { inputShape: train.inputShape, classes: train.classes };
      const labels = Array.from({ length: train.classes }, (_, id) => String(id));
      return { kind: 'images', train: train.dataset, test, facts, labels, data };
    }
    case 'text-csv':
      return loadTextCsv(data, seed, known);
    case 'text':
      return loadText(data, known);
  }
}

function mnistFolder({ directory }: MnistData): string {
  return directory ?? findMnist(import.meta.url);
}

function loadTextCsv(data: TextCsvData, seed: number, known: KnownWords): Task {
  const rows = readTextCsv(data.train, columnsOf(data));
  const tokenizer = tokenizerOf(data);
  const labelSet = known.labelSet ?? LabelSet.build(rows.labels);
  let { length } = data;
  const words = rows.texts.map((text) => tokenizer.tokenize(text));
  length ??= words.reduce((longest, text) => Math.max(longest, Math.min(text.length, LONGEST_TEXT)), 1);
  const vocabulary =
    known.vocabulary ??
    Vocabulary.build(words, { minCount: data.minCount ?? 1, maxSize: data.maxVocabulary ?? Infinity });
  const resolved = { ...data, length };
  const encode = (texts: LabelledTexts, file: string) =>
    encodeRows(texts, file, resolved, { vocabulary, labelSet });
  let train = encode(rows, data.train);
  let test =
    data.test === undefined ? undefined : encode(readTextCsv(data.test, knownColumnsOf(data)), data.test);
  if (!test && data.testFraction) [test, train] = train.split(data.testFraction, seed);
  const facts = { classes: labelSet.size, vocabulary: vocabulary.size, length };
  return { kind: 'text', train, test, facts, labels: labelSet.labels, labelSet, vocabulary, data: resolved };
}

function columnsOf({ textColumn, labelColumn, header }: TextCsvData): TextCsvOptions {
  return { textColumn, labelColumn, header };
}

/** Of a file whose labels are compared with known ones: nothing has to be guessed from how often they occur. */
function knownColumnsOf(data: TextCsvData): TextCsvOptions {
  const { textColumn, labelColumn, header } = columnsOf(data);
  const isNamed = [textColumn, labelColumn].some((column) => typeof column === 'string');
  return { textColumn, labelColumn, header: header ?? isNamed };
}

function tokenizerOf({ lowerCase = true }: TextCsvData): Tokenizer {
  return new Tokenizer({ lowerCase });
}

type Words = Required<{ readonly [K in keyof KnownWords]: NonNullable<KnownWords[K]> }>;

function encodeRows(rows: LabelledTexts, file: string, data: TextCsvData, words: Words): Dataset {
  const { length = LONGEST_TEXT } = data;
  return encodeText(rows.texts, rows.labels, {
    ...words,
    length,
    tokenizer: tokenizerOf(data),
    file,
    lines: rows.lines,
  });
}

/** A CSV file other than that of the training, in the terms of the training. */
export function encodeCsvFile(file: string, data: TextCsvData, words: Words): Dataset {
  return encodeRows(readTextCsv(file, knownColumnsOf(data)), file, data, words);
}

/** Token ids of a text as the model reads it. */
export function encodeOne(text: string, data: TextCsvData, vocabulary: Vocabulary, target: Int32Array): void {
  vocabulary.encode(tokenizerOf(data).tokenize(text), target);
}

function loadText(data: TextData, known: KnownWords): Task {
  const { unit = 'char', sequenceLength = DEFAULT_SEQUENCE_LENGTH } = data;
  const options = { unit, sequenceLength };
  const { dataset, vocabulary } = readLanguageModelText(
    { path: data.train },
    known.vocabulary ? { ...options, vocabulary: known.vocabulary } : options,
  );
  const test = data.test === undefined ? undefined : encodeTextFile(data.test, data, vocabulary);
  const facts = { vocabulary: vocabulary.size, length: sequenceLength };
  return { kind: 'language-model', train: dataset, test, facts, vocabulary, data: { ...data, ...options } };
}

export function encodeTextFile(path: string, data: TextData, vocabulary: Vocabulary): Dataset {
  const { unit = 'char', sequenceLength = DEFAULT_SEQUENCE_LENGTH } = data;
  return readLanguageModelText({ path }, { unit, sequenceLength, vocabulary }).dataset;
}
