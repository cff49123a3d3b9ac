/** Holds that `ErrorCodes`, `docs/errors.md` and the errors thrown in `src` speak of the same codes. */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { ErrorCodes, InternalError, PeerError, TributaryError, UsageError } from '../src/base/index.ts';
import { tableBelow } from './support/architecture.ts';

const root = fileURLToPath(new URL('..', import.meta.url));
const page = readFileSync(`${root}/docs/errors.md`, 'utf8');
const rows = ['## The caller must act', '## Another process is involved', '## We must act'].flatMap(
  (heading) => tableBelow(page, heading),
);
const sources = readdirSync(`${root}/src`, { recursive: true, encoding: 'utf8' })
  .filter((name) => name.endsWith('.ts') && name !== 'base/errors.ts')
  .map((name) => readFileSync(`${root}/src/${name}`, 'utf8'));

describe('docs/errors.md', () => {
  it('lists every code once, in the order of the source, with its meaning', () => {
    const expected = Object.entries(ErrorCodes).map(([code, meaning]) => [`\`${code}\``, meaning]);
    expect(rows.map(([code, meaning]) => [code, meaning])).toEqual(expected);
  });

  it('says a typical cause and the next step for each', () => {
    for (const [code, , cause, next] of rows) {
      expect(cause, `cause of ${code}`).toMatch(/^[A-Z].*\.$/);
      expect(next, `next step of ${code}`).toMatch(/^[A-Z].*\.$/);
    }
  });
});

describe('error codes', () => {
  it.each(Object.keys(ErrorCodes))('%s is thrown somewhere', (code) => {
    expect(sources.some((text) => text.includes(`'${code}'`))).toBe(true);
  });
});

describe('errors', () => {
  it('carry their code, facts, cause and class name', () => {
    const cause = new Error('below');
    for (const Class of [UsageError, PeerError, InternalError]) {
      const error = new Class('TIMEOUT', 'late', { rank: 1 }, cause);
      expect(error).toBeInstanceOf(TributaryError);
      expect(error).toMatchObject({
        name: Class.name,
        code: 'TIMEOUT',
        message: 'late',
        facts: { rank: 1 },
        cause,
      });
    }
    expect('cause' in new UsageError('TIMEOUT', 'late')).toBe(false);
  });
});
