/**
 * CSV by RFC 4180: comma separated, fields with commas, quotes or line breaks in double quotes, a quote doubled
 * inside them; CRLF or LF; a byte-order mark and blank lines at the end are ignored. Texts and labels are taken from
 * two of the columns. It does not guess: anything the RFC does not allow is INVALID_DATA with file and line.
 * Invariant: all rows of a result have the same number of fields.
 */
import { UsageError } from '../base/index.ts';
import { otherSeparator, resolveColumns, type TextColumns } from './csv-header.ts';
import { readText } from './text-file.ts';

export interface CsvRows {
  readonly rows: readonly (readonly string[])[];
  /** The line (from 1) on which each row starts. */
  readonly lines: readonly number[];
}

export type TextCsvOptions = TextColumns;

export interface LabelledTexts {
  readonly texts: readonly string[];
  readonly labels: readonly string[];
  /** The line (from 1) of each text. */
  readonly lines: readonly number[];
}

/** Reads a CSV file of texts and labels; an empty text or label is INVALID_DATA. */
export function readTextCsv(path: string, options: TextCsvOptions = {}): LabelledTexts {
  return parseTextCsv(readText(path), path, options);
}

/** As `readTextCsv`, for text that is in memory; `file` is the name used in errors. */
export function parseTextCsv(source: string, file: string, options: TextCsvOptions = {}): LabelledTexts {
  const { rows, lines } = parseCsv(source, file);
  const {
    text: textField,
    label: labelField,
    skipped,
  } = resolveColumns(
    rows,
    options,
    // The file may be as it should be: what is to be corrected is an option.
    (fault, nextStep) => fail(file, 1, fault, nextStep, 'INVALID_ARGUMENT'),
  );
  const texts: string[] = [];
  const labels: string[] = [];
  for (let i = skipped; i < rows.length; i++) {
    const text = rows[i]![textField]!;
    const label = rows[i]![labelField]!;
    if (text.trim() === '') throw fail(file, lines[i]!, 'the text is empty', 'Fill it in or remove the row');
    if (label.trim() === '')
      throw fail(file, lines[i]!, 'the label is empty', 'Fill it in or remove the row');
    texts.push(text);
    labels.push(label.trim());
  }
  if (texts.length === 0) throw fail(file, 1, 'there is a header but no row', 'Add rows of text and label');
  return { texts, labels, lines: lines.slice(skipped) };
}

/** Splits a CSV text into rows of fields; `file` is the name used in errors. */
export function parseCsv(source: string, file: string): CsvRows {
  const rows: string[][] = [];
  const lines: number[] = [];
  const end = endOfContent(source);
  let at = source.charCodeAt(0) === 0xfeff ? 1 : 0;
  let line = 1;
  if (at >= end) throw fail(file, 1, 'the file is empty', 'Give a file with at least one row');

  while (at < end) {
    const row: string[] = [];
    const rowLine = line;
    for (let more = true; more;) {
      if (source[at] === '"') {
        const field = quotedField(source, at, end, file, line);
        row.push(field.value);
        at = field.next;
        line += field.lineBreaks;
      } else {
        const stop = plainFieldEnd(source, at, end);
        if (source[stop] === '"' && stop < end) {
          throw fail(
            file,
            line,
            'a quote stands inside a field without quotes',
            'Put the whole field in quotes and double the quotes inside',
          );
        }
        row.push(source.slice(at, stop));
        at = stop;
      }
      more = at < end && source[at] === ',';
      if (more) at++;
    }
    if (at < end) {
      const width = lineBreakWidth(source, at);
      if (width === 0) {
        throw fail(
          file,
          line,
          `${JSON.stringify(source[at])} follows a closing quote where a comma or a line end is expected`,
          'Double the quotes inside quoted fields',
        );
      }
      at += width;
      line++;
    }
    const expected = rows[0]?.length ?? row.length;
    if (row.length !== expected) {
      throw fail(
        file,
        rowLine,
        `the row has ${row.length} field(s), the first one has ${expected}`,
        otherSeparator(rows[0]!) ?? 'Quote fields that contain commas, or complete the row',
      );
    }
    rows.push(row);
    lines.push(rowLine);
  }
  return { rows, lines };
}

/** Writes rows as RFC 4180 with CRLF; `parseCsv` gives the same rows back. */
export function formatCsv(rows: readonly (readonly string[])[]): string {
  return rows.map((row) => row.map((field) => formatField(field, row.length)).join(',') + '\r\n').join('');
}

function formatField(field: string, fields: number): string {
  // A byte-order mark would be dropped at the start of a file, and a lone empty field would be a blank line.
  const plain = !/[",\r\n\uFEFF]/.test(field) && (field !== '' || fields > 1);
  return plain ? field : `"${field.replaceAll('"', '""')}"`;
}

interface QuotedField {
  readonly value: string;
  readonly next: number;
  readonly lineBreaks: number;
}

function quotedField(source: string, start: number, end: number, file: string, line: number): QuotedField {
  let value = '';
  let at = start + 1;
  for (;;) {
    const quote = source.indexOf('"', at);
    if (quote === -1 || quote >= end) {
      throw fail(file, line, 'a quoted field is never closed', 'Add the closing quote');
    }
    value += source.slice(at, quote);
    at = quote + 1;
    if (source[at] !== '"') break;
    value += '"';
    at++;
  }
  let lineBreaks = 0;
  for (let i = value.indexOf('\n'); i !== -1; i = value.indexOf('\n', i + 1)) lineBreaks++;
  return { value, next: at, lineBreaks };
}

function plainFieldEnd(source: string, start: number, end: number): number {
  let at = start;
  while (at < end) {
    const character = source[at]!;
    if (character === ',' || character === '"' || lineBreakWidth(source, at) > 0) break;
    at++;
  }
  return at;
}

function lineBreakWidth(source: string, at: number): 0 | 1 | 2 {
  if (source[at] === '\n') return 1;
  return source[at] === '\r' && source[at + 1] === '\n' ? 2 : 0;
}

/** Where the text ends once blank lines at the end are left out. A quote before them keeps none of them open. */
function endOfContent(source: string): number {
  let end = source.length;
  while (end > 0 && source[end - 1] === '\n') end -= source[end - 2] === '\r' ? 2 : 1;
  return end;
}

function fail(
  file: string,
  line: number,
  fault: string,
  nextStep: string,
  code: 'INVALID_DATA' | 'INVALID_ARGUMENT' = 'INVALID_DATA',
): UsageError {
  return new UsageError(code, `${file}, line ${line}: ${fault}. ${nextStep}.`, { file, line });
}
