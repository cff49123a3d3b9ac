/**
 * What is wrong with a value by its schema, in words: what was found and what was expected. It knows the shape of what a
 * schema reports, and no library. Invariant: a field that is not there is called missing.
 */

/** One thing that a schema found, as zod reports it. */
export interface SchemaIssue {
  readonly code?: string | undefined;
  readonly path: readonly PropertyKey[];
  readonly message: string;
  readonly expected?: string | undefined;
  readonly values?: readonly unknown[] | undefined;
  readonly origin?: string | undefined;
  readonly minimum?: number | bigint | undefined;
  readonly maximum?: number | bigint | undefined;
  readonly inclusive?: boolean | undefined;
}

/** `given`: the whole value that was checked. */
export function schemaFault(issue: SchemaIssue, given: unknown): string {
  const { code, message } = issue;
  const path = issue.path.map(String);
  const field = path.join('.');
  // What a schema says in words of its own, and fields that it does not have.
  if (code === 'custom' || code === 'unrecognized_keys')
    return field === '' ? message : `${field}: ${message}`;
  const actual = valueAt(given, path);
  const subject = field === '' ? 'the value' : field;
  const found = actual === undefined ? 'is missing' : `is ${printValue(actual)}`;
  return `${subject} ${found}; expected ${expectation(issue)}`;
}

export function expectation(issue: SchemaIssue): string {
  const { expected = '', values = [], origin, inclusive, minimum, maximum } = issue;
  switch (issue.code) {
    case 'invalid_type':
      return expected === 'int' ? 'a whole number' : `${/^[aeiou]/.test(expected) ? 'an' : 'a'} ${expected}`;
    case 'invalid_value':
      return values.map((value) => JSON.stringify(value)).join(', ');
    case 'too_small':
      return `${unitOf(origin)}${inclusive ? 'at least' : 'above'} ${minimum}`;
    case 'too_big':
      return `${unitOf(origin)}${inclusive ? 'at most' : 'below'} ${maximum}`;
    default:
      return issue.message.replace(/^expected /, '');
  }
}

function unitOf(origin: string | undefined): string {
  return origin === 'string' ? 'a text of length ' : origin === 'array' ? 'a list of length ' : '';
}

export function valueAt(value: unknown, path: readonly string[]): unknown {
  let at = value;
  for (const part of path)
    at = typeof at === 'object' && at !== null ? (at as Record<string, unknown>)[part] : undefined;
  return at;
}

export function printValue(value: unknown): string {
  if (typeof value === 'function') return 'a function';
  const text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? String(value));
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}
