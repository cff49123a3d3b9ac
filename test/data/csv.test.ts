import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { formatCsv, parseCsv, parseTextCsv, readTextCsv } from '../../src/data/index.ts';
import { datasetPath, NEEDS_DATASETS } from '../support/shared.ts';
import { expectError } from './expect-error.ts';
import { temporaryFolders } from './temporary-folder.ts';

const newFolder = temporaryFolders();

describe('parseCsv', () => {
  it('reads quotes, commas, doubled quotes, line breaks in fields, CRLF and a byte-order mark', () => {
    const text = '\uFEFFa,"b, c"\r\n"say ""hi""","two\nlines"\nlast,\n';
    const { rows, lines } = parseCsv(text, 'f.csv');
    expect(rows).toEqual([
      ['a', 'b, c'],
      ['say "hi"', 'two\nlines'],
      ['last', ''],
    ]);
    expect(lines).toEqual([1, 2, 4]);
  });

  it('ignores blank lines at the end and needs none', () => {
    expect(parseCsv('a,b\n\r\n\n', 'f').rows).toEqual([['a', 'b']]);
    expect(parseCsv('a,b', 'f').rows).toEqual([['a', 'b']]);
  });

  it('gives back every table that formatCsv wrote', () => {
    const field = fc.oneof(
      fc.string({ unit: 'binary' }),
      fc.string({ unit: fc.constantFrom('"', ',', '\n', '\r', '\uFEFF', ' ', 'é', 'a') }),
    );
    const table = fc
      .integer({ min: 1, max: 4 })
      .chain((width) =>
        fc.array(fc.array(field, { minLength: width, maxLength: width }), { minLength: 1, maxLength: 6 }),
      );
    fc.assert(
      fc.property(table, (rows) => {
        expect(parseCsv(formatCsv(rows), 'f').rows).toEqual(rows);
        expect(parseCsv(formatCsv(rows).replaceAll('\r\n', '\n'), 'f').rows).toEqual(
          rows.map((row) => row.map((cell) => cell.replaceAll('\r\n', '\n'))),
        );
      }),
    );
  });

  it('either reads any text or says INVALID_DATA with file and line', () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom('"', ',', '\n', '\r', 'a') }), (text) => {
        try {
          parseCsv(text, 'f.csv');
        } catch {
          expectError(() => parseCsv(text, 'f.csv'), 'INVALID_DATA', 'f.csv, line ');
        }
      }),
      { numRuns: 500 },
    );
  });

  it('refuses what RFC 4180 does not allow, with file and line', () => {
    expectError(() => parseCsv('', 'f.csv'), 'INVALID_DATA', 'f.csv, line 1', 'empty');
    expectError(() => parseCsv('\uFEFF\n\n', 'f.csv'), 'INVALID_DATA', 'empty');
    expectError(() => parseCsv('a,b\nc\n', 'f.csv'), 'INVALID_DATA', 'f.csv, line 2', '1 field(s)');
    expectError(() => parseCsv('a,b\n\nc,d\n', 'f.csv'), 'INVALID_DATA', 'line 2');
    expectError(() => parseCsv('"a\nb",c\nd,e,f', 'f.csv'), 'INVALID_DATA', 'line 3', '3 field(s)');
    expectError(() => parseCsv('a,b\n"c\n,d\n', 'f.csv'), 'INVALID_DATA', 'line 2', 'never closed');
    expectError(() => parseCsv('a "b" c,d\n', 'f.csv'), 'INVALID_DATA', 'line 1', 'quote');
    expectError(() => parseCsv('"a"b,d\n', 'f.csv'), 'INVALID_DATA', 'line 1', '"b"');
  });
});

describe('readTextCsv', () => {
  const write = (content: string | Uint8Array): string => {
    const path = join(newFolder(), 'texts.csv');
    writeFileSync(path, content);
    return path;
  };

  it('reads texts, labels and their lines, by column and past a header', () => {
    const path = write('label,id,text\nA,1,"one\ntwo"\n B ,2,three\n');
    expect(readTextCsv(path, { textColumn: 2, labelColumn: 0, header: true })).toEqual({
      texts: ['one\ntwo', 'three'],
      labels: ['A', 'B'],
      lines: [2, 4],
    });
  });

  it('refuses missing columns, empty texts and labels, and a header alone', () => {
    expectError(() => parseTextCsv('a\nb\n', 'f'), 'INVALID_ARGUMENT', 'the row has one field');
    expectError(() => parseTextCsv('a,b\n', 'f', { textColumn: -1 }), 'INVALID_ARGUMENT', 'textColumn is -1');
    expectError(() => parseTextCsv('a,b\n ,c\n', 'f'), 'INVALID_DATA', 'line 2', 'text is empty');
    expectError(() => parseTextCsv('a,b\nc,\n', 'f'), 'INVALID_DATA', 'line 2', 'label is empty');
    expectError(() => parseTextCsv('a,b\n', 'f', { header: true }), 'INVALID_DATA', 'no row');
  });

  it('refuses files that are missing, folders, or not UTF-8, naming the line', () => {
    expectError(() => readTextCsv('/nowhere/x.csv'), 'FILE_NOT_FOUND', '/nowhere/x.csv');
    expectError(() => readTextCsv(newFolder()), 'FILE_NOT_FOUND');
    const path = write(Buffer.from('gr\u00fc\u00dfe,a\nb\u00e9,c\n', 'latin1'));
    expectError(() => readTextCsv(path), 'INVALID_DATA', `${path}, line 1`, 'UTF-8');
    const second = write(Buffer.concat([Buffer.from('é,a\n'), Buffer.from([0x62, 0xff, 0x0a])]));
    expectError(() => readTextCsv(second), 'INVALID_DATA', `${second}, line 2`);
  });

  for (const [file, rows, labels] of [
    ['trec6-train.csv', 5452, 6],
    ['trec6-test.csv', 500, 6],
    ['movie-reviews-train.csv', 9596, 2],
    ['banking77-train.csv', 10003, 77],
    ['banking77-test.csv', 3080, 77],
  ] as const) {
    const path = datasetPath(file);
    it.skipIf(path === undefined)(`reads all rows of ${file} (${NEEDS_DATASETS})`, () => {
      const read = readTextCsv(path!);
      expect(read.texts).toHaveLength(rows);
      expect(new Set(read.labels).size).toBe(labels);
    });
  }
});
