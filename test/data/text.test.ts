import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  LabelSet,
  Tokenizer,
  Vocabulary,
  encodeText,
  readLanguageModelText,
  readTextCsv,
} from '../../src/data/index.ts';
import { datasetPath, NEEDS_DATASETS } from '../support/shared.ts';
import { expectError } from './expect-error.ts';
import { temporaryFolders } from './temporary-folder.ts';

const newFolder = temporaryFolders();
const words = (text: string): string[] => new Tokenizer().tokenize(text);

describe('Tokenizer', () => {
  it('cleans a text the way of the sentence-classification CNN', () => {
    expect(words("It's great, isn't it? (They've said: I'd like she'll, we're)")).toEqual(
      "it 's great , is n't it ? ( they 've said i 'd like she 'll , we 're )".split(' '),
    );
    expect(words('a--b  $5.00; x@y')).toEqual(['a', 'b', '5', '00', 'x', 'y']);
    expect(words('')).toEqual([]);
    expect(words("don\u2019t 'some rock'n'roll")).toEqual(['do', "n't", "'some", "rock'n'roll"]);
  });

  it('keeps letters of every script, composed or not', () => {
    expect(words('Ärger ĆEVAPI привет 東京')).toEqual(['ärger', 'ćevapi', 'привет', '東京']);
    expect(words('A\u0308rger')).toEqual(words('Ärger'));
    expect(new Tokenizer({ lowerCase: false }).tokenize("Can't GO")).toEqual(['Ca', "n't", 'GO']);
  });

  it('gives the same words again when it is given its own words', () => {
    const text = fc.oneof(
      fc.string({ unit: 'binary' }),
      fc.string({ unit: 'grapheme' }),
      fc.string({
        unit: fc.constantFrom("n't", "'s", "'", 'n', 't', 's', 'd', ' ', '!', 'É', 'Σ', 'İ', '\u0301'),
      }),
    );
    fc.assert(
      fc.property(text, (source) => {
        const once = words(source);
        expect(words(once.join(' '))).toEqual(once);
      }),
      { numRuns: 500 },
    );
  });
});

describe('Vocabulary', () => {
  it('orders by falling count then by code unit, after padding and unknown', () => {
    const vocabulary = Vocabulary.build([['b', 'a', 'c'], ['c', 'd', 'a'], ['c']]);
    expect(vocabulary.size).toBe(6);
    expect(['c', 'a', 'b', 'd', 'zzz', '__proto__', '<pad>'].map((word) => vocabulary.id(word))).toEqual([
      2, 3, 4, 5, 1, 1, 1,
    ]);
    expect([0, 1, 2].map((id) => vocabulary.word(id))).toEqual(['<pad>', '<unk>', 'c']);
    expectError(() => vocabulary.word(6), 'OUT_OF_BOUNDS', '6');
  });

  it('leaves out rare words and keeps to its size', () => {
    const texts = [['a', 'a', 'a', 'b', 'b', 'c']];
    expect(Vocabulary.build(texts, { minCount: 2 }).size).toBe(4);
    const three = Vocabulary.build(texts, { maxSize: 3 });
    expect([three.size, three.id('a'), three.id('b')]).toEqual([3, 2, 1]);
    expectError(() => Vocabulary.build(texts, { maxSize: 2 }), 'INVALID_ARGUMENT', 'maxSize 2');
    expectError(() => Vocabulary.build(texts, { minCount: 0 }), 'INVALID_ARGUMENT', 'minCount 0');
  });

  it('does not depend on the order of the texts and survives JSON', () => {
    fc.assert(
      fc.property(fc.array(fc.array(fc.string())), (texts) => {
        const vocabulary = Vocabulary.build(texts);
        expect(Vocabulary.build([...texts].reverse()).toJSON()).toEqual(vocabulary.toJSON());
        const again = Vocabulary.fromJSON(JSON.parse(JSON.stringify(vocabulary)));
        expect(again.toJSON()).toEqual(vocabulary.toJSON());
        for (const word of texts.flat()) expect(again.id(word)).toBe(vocabulary.id(word));
      }),
    );
  });

  it('refuses JSON that is not a vocabulary', () => {
    const json = (list: unknown): unknown => ({ kind: 'vocabulary', version: 1, words: list });
    for (const value of [
      null,
      3,
      [],
      {},
      { kind: 'labels', version: 1, words: [] },
      { ...Object(json([])), version: 2 },
    ]) {
      expectError(() => Vocabulary.fromJSON(value, 'v.json'), 'INVALID_DATA', 'v.json', 'kind');
    }
    expectError(() => Vocabulary.fromJSON(json('ab'), 'v.json'), 'INVALID_DATA', 'not a list');
    expectError(() => Vocabulary.fromJSON(json(['a', 4]), 'v.json'), 'INVALID_DATA', 'words[1]');
    expectError(() => Vocabulary.fromJSON(json(['a', '']), 'v.json'), 'INVALID_DATA', 'words[1]');
    expectError(() => Vocabulary.fromJSON(json(['a', 'a']), 'v.json'), 'INVALID_DATA', 'repeats "a"');
    expectError(() => Vocabulary.fromJSON(json(['<pad>']), 'v.json'), 'INVALID_DATA', '<pad>');
  });
});

describe('LabelSet', () => {
  it('numbers labels in sorted order and survives JSON', () => {
    const set = LabelSet.build(['b', 'a', 'b', 'c']);
    expect([set.size, set.id('a'), set.id('c'), set.label(1)]).toEqual([3, 0, 2, 'b']);
    expect(LabelSet.fromJSON(JSON.parse(JSON.stringify(set))).labels).toEqual(['a', 'b', 'c']);
    expectError(() => set.label(3), 'OUT_OF_BOUNDS');
  });

  it('names an unknown label, its place and some of the known ones', () => {
    const set = LabelSet.build(Array.from({ length: 30 }, (_, i) => `label${i + 10}`));
    const error = expectError(
      () => set.id('odd', { file: 'f.csv', line: 7 }),
      'UNKNOWN_LABEL',
      'f.csv, line 7',
      '"odd"',
      '"label10"',
      'and 20 more',
    );
    expect(error.message).not.toContain('label35');
    const long = expectError(() => set.id('x'.repeat(5000)), 'UNKNOWN_LABEL');
    expect(long.message.length).toBeLessThan(500);
  });

  it('refuses no labels, empty ones and foreign JSON', () => {
    expectError(() => LabelSet.build([]), 'INVALID_DATA');
    expectError(() => LabelSet.build(['a', '']), 'INVALID_DATA');
    expectError(
      () => LabelSet.fromJSON({ kind: 'labels', version: 1, labels: [] }, 'l.json'),
      'INVALID_DATA',
      'l.json',
    );
    expectError(() => LabelSet.fromJSON({ kind: 'vocabulary', version: 1, labels: ['a'] }), 'INVALID_DATA');
  });
});

describe('encodeText', () => {
  const vocabulary = Vocabulary.build([['a', 'b', 'b']]);
  const labelSet = LabelSet.build(['no', 'yes']);

  it('pads, cuts off and numbers', () => {
    const dataset = encodeText(['A b zzz a', 'b'], ['yes', 'no'], { vocabulary, labelSet, length: 3 });
    expect([...dataset.column('tokens').data]).toEqual([3, 2, 1, 2, 0, 0]);
    expect(dataset.column('tokens').sampleShape).toEqual([3]);
    expect([...dataset.column('labels').data]).toEqual([1, 0]);
  });

  it('refuses unknown labels with their line, uneven lists and lengths below 1', () => {
    const options = { vocabulary, labelSet, length: 3 };
    expectError(() => encodeText(['a', 'b'], ['no', 'maybe'], options), 'UNKNOWN_LABEL', 'line 2', '"maybe"');
    expectError(
      () => encodeText(['a'], ['maybe'], { ...options, file: 'f.csv', lines: [12] }),
      'UNKNOWN_LABEL',
      'f.csv, line 12',
    );
    expectError(() => encodeText(['a'], [], options), 'INVALID_DATA');
    expectError(() => encodeText([], [], options), 'INVALID_DATA');
    expectError(() => encodeText(['a'], ['no'], { ...options, length: 0 }), 'INVALID_ARGUMENT', 'length');
  });

  const trec6 = ['train', 'test'].map((part) => datasetPath(`trec6-${part}.csv`));
  it.skipIf(trec6.includes(undefined))(`encodes TREC-6 (${NEEDS_DATASETS})`, () => {
    const train = readTextCsv(trec6[0]!);
    const test = readTextCsv(trec6[1]!);
    const trained = Vocabulary.build(train.texts.map(words));
    const dataset = encodeText(test.texts, test.labels, {
      vocabulary: trained,
      labelSet: LabelSet.build(train.labels),
      length: 40,
    });
    expect(dataset.length).toBe(500);
    const tokens = dataset.column('tokens').data.filter((id) => id !== 0);
    expect(tokens.filter((id) => id === 1).length / tokens.length).toBeLessThan(0.15);
  });
});

describe('readLanguageModelText', () => {
  it('cuts characters into windows whose targets are the next characters', () => {
    fc.assert(
      fc.property(
        fc.string({ unit: 'binary', minLength: 2, maxLength: 60 }),
        fc.integer({ min: 1, max: 9 }),
        (text, sequenceLength) => {
          const units = Array.from(text);
          fc.pre(units.length > sequenceLength);
          const { dataset, vocabulary } = readLanguageModelText({ text }, { unit: 'char', sequenceLength });
          const elements = Math.floor((units.length - 1) / sequenceLength) * sequenceLength;
          const spell = (column: string): string =>
            Array.from(dataset.column(column).data, (id) => vocabulary.word(id)).join('');
          expect(dataset.length).toBe(elements / sequenceLength);
          expect(spell('tokens')).toBe(units.slice(0, elements).join(''));
          expect(spell('targets')).toBe(units.slice(1, elements + 1).join(''));
        },
      ),
    );
  });

  it('splits words, marks line ends and maps foreign words to unknown', () => {
    const path = join(newFolder(), 'text.txt');
    writeFileSync(path, ' the cat\r\nthe <unk> dog\n');
    const train = readLanguageModelText({ path }, { unit: 'word', sequenceLength: 2 });
    const spelled = Array.from(train.dataset.column('tokens').data, (id) => train.vocabulary.word(id));
    expect(spelled).toEqual(['the', 'cat', '<eos>', 'the', '<unk>', 'dog']);
    const { vocabulary } = train;
    const other = readLanguageModelText(
      { text: 'cat bird dog' },
      { unit: 'word', sequenceLength: 2, vocabulary },
    );
    expect([...other.dataset.column('tokens').data]).toEqual([vocabulary.id('cat'), 1]);
    expect([...other.dataset.column('targets').data]).toEqual([1, vocabulary.id('dog')]);
  });

  it('refuses text that is too short, missing files and lengths below 1', () => {
    const options = { unit: 'char', sequenceLength: 4 } as const;
    expectError(() => readLanguageModelText({ text: 'abcd' }, options), 'INVALID_DATA', '4 char(s)', '5');
    expectError(() => readLanguageModelText({ text: '' }, options), 'INVALID_DATA');
    expectError(() => readLanguageModelText({ path: '/nowhere' }, options), 'FILE_NOT_FOUND');
    expectError(
      () => readLanguageModelText({ text: 'ab' }, { ...options, sequenceLength: 0 }),
      'INVALID_ARGUMENT',
    );
  });
});
