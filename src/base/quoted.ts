/**
 * Text of others, for logs and errors that people read on a terminal. Pure. Invariant: what comes out is one line, and
 * its characters neither steer a terminal nor change the direction of what follows.
 */

/** Controls of both sets, ends of lines, and marks of direction. */
const STEERING = /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu;

/** Escapes each such character as JSON does. */
export function printable(text: string): string {
  return text.replace(STEERING, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

/** As JSON, of so many characters at most. `value`: of a message that was parsed, whatever is in it. */
export function quoted(value: unknown, most: number): string {
  const text = printable(JSON.stringify(value) ?? 'nothing');
  return text.length > most ? `${text.slice(0, most)}…` : text;
}
