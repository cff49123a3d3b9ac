/** Text of others, as it is shown to people. */
import { expect, it } from 'vitest';
import { printable, quoted } from '../../src/base/index.ts';

it('text of others is one line and steers no terminal', () => {
  expect(printable('a\n\r\u001b[31m\u007f\u009b2J\u2028\u2029\u202e\u2066b')).toBe(
    'a\\u000a\\u000d\\u001b[31m\\u007f\\u009b2J\\u2028\\u2029\\u202e\\u2066b',
  );
  expect(printable("Schlüssel 'λ' 🙂")).toBe("Schlüssel 'λ' 🙂");
});

it('whatever was parsed is quoted, cut where it is long', () => {
  for (const value of [{ toString: 1 }, null, 7, [['']], { toJSON: 'x' }])
    expect(quoted(value, 100)).toBe(JSON.stringify(value));
  expect(quoted(undefined, 100)).toBe('nothing');
  expect(quoted('x'.repeat(1000), 10)).toBe('"xxxxxxxxx…');
});
