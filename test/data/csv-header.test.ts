/** A first row of names: noticed where nobody spoke of it, and used to find columns. Rows that are samples are not taken for one. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { formatCsv, LabelSet, parseTextCsv, type TextCsvOptions } from '../../src/data/index.ts';
import { expectError } from './expect-error.ts';

const SAMPLES = [
  ['a fine film', 'positive'],
  ['a dull one', 'negative'],
];
const twelve = Array.from({ length: 12 }, (_, i) => SAMPLES[i % 2]!);
const parse = (rows: readonly (readonly string[])[], options?: TextCsvOptions) =>
  parseTextCsv(formatCsv(rows), 'f.csv', options);

describe('a row of names without a word about it', () => {
  it.each([
    ['text', 'label', SAMPLES],
    ['Review', 'Sentiment', twelve],
    ['question', 'question_type', SAMPLES],
    ['utterance', 'x1', SAMPLES],
    ['Satz', 'Klasse', twelve],
    [
      'Satz',
      'Klasse',
      [
        ['eins', '0'],
        ['zwei', '1'],
      ],
    ],
    ['text', 'label', []],
  ])('is refused: %s,%s', (text, label, rows) => {
    expectError(
      () => parse([[text, label], ...rows]),
      'INVALID_ARGUMENT',
      'f.csv, line 1',
      `"${label}" occurs nowhere else`,
      'header: true',
      `textColumn: "${text}", labelColumn: "${label}"`,
      'header: false',
    );
    // Either word settles it.
    const first = [text, label];
    expect(parse([first, ...rows], { header: false }).labels[0]).toBe(label);
    if (rows.length > 0) expect(parse([first, ...rows], { header: true }).labels).toHaveLength(rows.length);
  });

  it('is noticed in whatever field the label is', () => {
    const rows = [['label', 'id', 'text'], ...twelve.map(([text, label], i) => [label!, `${i}`, text!])];
    expectError(() => parse(rows, { textColumn: 2, labelColumn: 0 }), 'INVALID_ARGUMENT', 'line 1', 'header');
  });
});

describe('a row that is a sample', () => {
  it.each([
    ['whose label comes again', [['a text', 'label'], ['another', 'label'], ...SAMPLES]],
    ['of a small file, in which labels occur once', SAMPLES],
    ['of a small file, in which one label occurs once', [['new', 'neutral'], ...SAMPLES, ...SAMPLES]],
    ['alone', [['a text', 'positive']]],
    ['among labels that each occur once', twelve.map(([text], i) => [text!, `label ${i}`])],
    [
      'among numbers',
      [
        ['one', '1'],
        ['two', '2'],
      ],
    ],
  ])('is read: %s', (_, rows) => {
    expect(parse(rows).labels).toHaveLength(rows.length);
  });

  it('is read from any table whose first label comes again', () => {
    const cell = fc.stringMatching(/^[a-z]{1,6}$/);
    const table = fc.array(fc.tuple(cell, cell), { minLength: 1, maxLength: 30 });
    fc.assert(
      fc.property(table, (rows) => {
        const all = [...rows, ['again', rows[0]![1]]];
        expect(parse(all).texts).toHaveLength(all.length);
      }),
    );
  });
});

describe('columns by name', () => {
  const rows = [['id', 'Text', 'label'], ...SAMPLES.map(([text, label], i) => [`${i}`, text!, label!])];

  it('are found in the first row, which is then no sample', () => {
    const read = parse(rows, { textColumn: 'Text', labelColumn: 'label' });
    expect(read).toEqual({
      texts: SAMPLES.map(([text]) => text),
      labels: ['positive', 'negative'],
      lines: [2, 3],
    });
    expect(parse(rows, { textColumn: ' Text ', labelColumn: 2, header: true })).toEqual(read);
  });

  it('that are not there, or there twice, are refused with the names there are', () => {
    const wanted = { textColumn: 'review', labelColumn: 'label' };
    expectError(
      () => parse(rows, wanted),
      'INVALID_ARGUMENT',
      'line 1',
      'textColumn is "review"',
      'id, Text, label',
    );
    const upper = { textColumn: 'text', labelColumn: 'label' };
    expectError(() => parse(rows, upper), 'INVALID_ARGUMENT', 'textColumn is "text"', 'Text');
    const twice = [['a', 'a'], ...SAMPLES];
    expectError(
      () => parse(twice, { textColumn: 'a', labelColumn: 1 }),
      'INVALID_ARGUMENT',
      '2 columns',
      '"a"',
    );
  });

  it('need the other one too, a header, and two different columns', () => {
    expectError(() => parse(rows, { textColumn: 'Text' }), 'INVALID_ARGUMENT', 'labelColumn', 'give both');
    expectError(() => parse(rows, { labelColumn: 'label' }), 'INVALID_ARGUMENT', 'textColumn', 'give both');
    const without = { textColumn: 'Text', labelColumn: 'label', header: false };
    expectError(() => parse(rows, without), 'INVALID_ARGUMENT', 'header is false');
    expectError(
      () => parse(SAMPLES, { textColumn: 1 }),
      'INVALID_ARGUMENT',
      'textColumn and labelColumn',
      'both',
    );
  });
});

describe('a file whose fields are separated otherwise', () => {
  const one = 'the row has one field, but a text and a label are needed';
  it.each([
    ['a tab', 'a text\tpositive\nanother\tnegative\n', one],
    ['a semicolon', 'a text;positive\nanother;negative\n', one],
    [
      'a semicolon',
      'a text;positive\nanother, longer;negative\n',
      'the row has 2 field(s), the first one has 1',
    ],
  ])('is told so: %s', (separator, source, fault) => {
    const nextStep = `Fields are separated by commas; line 1 has ${separator}: convert the file`;
    for (const options of [{}, { textColumn: 'text', labelColumn: 'label' }]) {
      const message = () => parseTextCsv(source, 'f.csv', options);
      expect(message).toThrow(fault);
      expect(message).toThrow(nextStep);
    }
  });

  it('is told how many fields are needed if it has one', () => {
    const next = 'Fields are separated by commas: write the text, a comma and the label';
    expectError(() => parse([['a text'], ['another']]), 'INVALID_ARGUMENT', 'f.csv, line 1', one, next);
  });
});

it('a label in line 1 that training never saw may be the name of a column, and the error says so', () => {
  const labels = LabelSet.build(['negative', 'positive']);
  const place = { file: 'test.csv', line: 1 };
  expectError(() => labels.id('label', place), 'UNKNOWN_LABEL', 'test.csv, line 1', 'header: true');
  expect(expectError(() => labels.id('label', { ...place, line: 2 }), 'UNKNOWN_LABEL').message).not.toMatch(
    'header',
  );
});
