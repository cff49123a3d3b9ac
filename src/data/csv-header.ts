/**
 * The first row of a CSV of texts and labels: whether it holds the names of the columns, and which columns are meant
 * by name. Reads no file. Invariant: a row is taken for names without being told so only to refuse it with the
 * options that settle it, never to skip it.
 */
import { UsageError } from '../base/index.ts';

export interface TextColumns {
  /** The field that holds the text: its number, from 0, or its name in the first row. Default 0. */
  readonly textColumn?: number | string | undefined;
  /** The field that holds the label: its number, from 0, or its name in the first row. Default 1. */
  readonly labelColumn?: number | string | undefined;
  /**
   * Whether the first row holds names and is skipped. Default: true where columns are given by name; otherwise false,
   * and a first row that looks like names is refused. Give false if it is a sample all the same.
   */
  readonly header?: boolean | undefined;
}

/** Which fields are meant, from 0, and how many rows come before the first sample. */
export interface ResolvedColumns {
  readonly text: number;
  readonly label: number;
  readonly skipped: 0 | 1;
}

/** `refuse` makes the error of a fault in the first line, with the next step. */
type Refuse = (fault: string, nextStep: string) => UsageError;

export function resolveColumns(
  rows: readonly (readonly string[])[],
  columns: TextColumns,
  refuse: Refuse,
): ResolvedColumns {
  checkNames(columns);
  const { textColumn = 0, labelColumn = 1, header } = columns;
  const isNamed = typeof textColumn === 'string' || typeof labelColumn === 'string';
  const first = rows[0]!;
  if (first.length === 1) {
    throw refuse(
      'the row has one field, but a text and a label are needed',
      otherSeparator(first) ?? 'Fields are separated by commas: write the text, a comma and the label',
    );
  }
  const text = fieldOf('textColumn', textColumn, first, refuse);
  const label = fieldOf('labelColumn', labelColumn, first, refuse);
  if (text === label) {
    throw refuse(
      `textColumn and labelColumn are both field ${text}`,
      'Give the two fields that hold the text and the label',
    );
  }
  const isSkipped = header ?? isNamed;
  if (header === undefined && !isSkipped && looksLikeNames(rows, text, label)) {
    const [textName, labelName] = [shortened(first[text]!), shortened(first[label]!)];
    throw refuse(
      `the row looks like the names of the columns, as the label ${labelName} occurs nowhere else`,
      `Set header: true to skip it, or name the columns by textColumn: ${textName}, labelColumn: ${labelName}; if it is a sample, set header: false`,
    );
  }
  return { text, label, skipped: isSkipped ? 1 : 0 };
}

/** The next step where a first row of one field looks like several between other separators; else undefined. */
export function otherSeparator(first: readonly string[]): string | undefined {
  const separator = first[0]!.includes('\t') ? 'a tab' : first[0]!.includes(';') ? 'a semicolon' : undefined;
  if (separator === undefined || first.length > 1) return undefined;
  return `Fields are separated by commas; line 1 has ${separator}: convert the file`;
}

function checkNames({ textColumn, labelColumn, header }: TextColumns): void {
  const given = Object.entries({ textColumn, labelColumn });
  const [name, value] = given.find(([, column]) => typeof column === 'string') ?? [];
  if (name === undefined) return;
  const [other] = given.find(([, column]) => column === undefined) ?? [];
  if (other !== undefined) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${name} is ${JSON.stringify(value)}, a name, but ${other} is missing; give both.`,
      { [name]: value },
    );
  }
  if (header !== false) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${name} is ${JSON.stringify(value)}, a name, but header is false, so that there are no names; leave header out, or give numbers, counted from 0.`,
    { [name]: value, header },
  );
}

function fieldOf(option: string, column: number | string, names: readonly string[], refuse: Refuse): number {
  if (typeof column === 'number') {
    if (Number.isInteger(column) && column >= 0 && column < names.length) return column;
    throw refuse(
      `${option} is ${column} but the rows have ${names.length} field(s)`,
      `Fields are counted from 0: give 0 to ${names.length - 1}`,
    );
  }
  const found = names.flatMap((name, i) => (name.trim() === column.trim() ? [i] : []));
  if (found.length === 1) return found[0]!;
  const known = names.map((name) => name.trim()).join(', ');
  throw found.length === 0
    ? refuse(
        `${option} is ${JSON.stringify(column)}, and there is no such column among ${known}`,
        'Give one of these names, as it is written there, or a number, counted from 0',
      )
    : refuse(
        `there are ${found.length} columns ${JSON.stringify(column)} among ${known}`,
        `Rename one, or give ${option} as a number, counted from 0`,
      );
}

/** Words that people put over such columns. */
const LABEL_WORDS = new Set(
  'label labels class classes category target sentiment intent topic tag type polarity emotion genre y'.split(
    ' ',
  ),
);
const TEXT_WORDS = new Set(
  'text texts sentence review question comment utterance query message content title document body tweet headline description phrase'.split(
    ' ',
  ),
);
/** In fewer rows a label that occurs once is nothing special. */
const ENOUGH_ROWS = 10;

/**
 * A label that comes again is a label. One that does not is the name of a column if the row says so in words, if all
 * other labels are numbers, or if all of them come again in a file of some length.
 */
function looksLikeNames(rows: readonly (readonly string[])[], text: number, label: number): boolean {
  const own = rows[0]![label]!.trim();
  const counts = new Map<string, number>();
  for (let i = 1; i < rows.length; i++) {
    const other = rows[i]![label]!.trim();
    if (other === own) return false;
    counts.set(other, (counts.get(other) ?? 0) + 1);
  }
  if (isWord(own, LABEL_WORDS) || isWord(rows[0]![text]!, TEXT_WORDS)) return true;
  const others = [...counts.keys()];
  if (others.length > 0 && !isNumber(own) && others.every(isNumber)) return true;
  return rows.length > ENOUGH_ROWS && [...counts.values()].every((count) => count > 1);
}

/** `label`, `Label`, `question_type`; not a text of several words. */
function isWord(cell: string, words: ReadonlySet<string>): boolean {
  const parts = cell.trim().toLowerCase().split(/[_-]+/u);
  return parts.length <= 2 && words.has(parts.at(-1)!);
}

function isNumber(cell: string): boolean {
  return cell !== '' && Number.isFinite(Number(cell));
}

function shortened(cell: string): string {
  const name = cell.trim();
  return JSON.stringify(name.length > 40 ? `${name.slice(0, 40)}…` : name);
}
