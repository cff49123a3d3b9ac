/**
 * JSON where the exact bytes matter: one canonical text for each value (keys sorted, two spaces, finite numbers
 * only), and detection of repeated keys, which `JSON.parse` hides. No schema checks.
 */
import { UsageError } from '../../base/index.ts';

export type JsonValue =
  null | boolean | number | string | readonly JsonValue[] | { readonly [key: string]: JsonValue };

/** The one text of a value. Equal values give equal texts; the text ends with a line break. */
export function canonicalJson(value: JsonValue): string {
  return `${JSON.stringify(sorted(value, '$'), null, 2)}\n`;
}

function sorted(value: unknown, path: string): unknown {
  if (value === null || typeof value === 'boolean' || typeof value === 'string') return value;
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  if (Array.isArray(value)) return value.map((item, index) => sorted(item, `${path}[${index}]`));
  if (typeof value === 'object' && [Object.prototype, null].includes(Object.getPrototypeOf(value) as null)) {
    const entries = Object.entries(value).filter(([, item]) => item !== undefined);
    entries.sort(([a], [b]) => (a < b ? -1 : 1));
    return Object.fromEntries(entries.map(([key, item]) => [key, sorted(item, `${path}.${key}`)]));
  }
  const found = typeof value === 'number' ? String(value) : Object.prototype.toString.call(value);
  throw new UsageError(
    'INVALID_ARGUMENT',
    `The state of a checkpoint must be JSON, but ${path} is ${found}. Store plain objects, lists, strings and finite numbers.`,
    { path },
  );
}

/** The first key that an object of this text repeats, at any depth. The text must be valid JSON. */
export function repeatedKey(text: string): string | undefined {
  const open: (Set<string> | undefined)[] = [];
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === '{') open.push(new Set());
    else if (character === '[') open.push(undefined);
    else if (character === '}' || character === ']') open.pop();
    else if (character === '"') {
      const end = stringEnd(text, at);
      const keys = open.at(-1);
      if (keys !== undefined && isFollowedByColon(text, end)) {
        const key = JSON.parse(text.slice(at, end)) as string;
        if (keys.has(key)) return key;
        keys.add(key);
      }
      at = end - 1;
    }
  }
  return undefined;
}

function stringEnd(text: string, start: number): number {
  let at = start + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return at + 1;
}

function isFollowedByColon(text: string, from: number): boolean {
  let at = from;
  while (at < text.length && ' \t\r\n'.includes(text[at]!)) at++;
  return text[at] === ':';
}
