/** Which test files count as failed when continuous integration has run them twice, and how tests are counted. */
import { describe, expect, it } from 'vitest';

type Status = 'passed' | 'failed' | 'skipped' | 'todo';
interface Report {
  readonly testResults: readonly {
    readonly name: string;
    readonly status: 'passed' | 'failed';
    readonly assertionResults: readonly { readonly status: Status }[];
  }[];
}
interface Run {
  readonly code: number;
  readonly report: Report | undefined;
}
interface Scripts {
  totalsOf: (report: Report) => { passed: number; failed: number; skipped: number };
  runTwice: (run: (files: readonly string[]) => Run) => Run & { readonly flaky: readonly string[] };
}
const { href } = new URL('../scripts/test-results.js', import.meta.url);
const { runTwice, totalsOf } = (await import(href)) as Scripts;

/** A file by the statuses of its tests; it fails with one of them, or, without tests, as a whole. */
const file = (name: string, ...statuses: readonly Status[]): Report['testResults'][number] => ({
  name,
  status: statuses.length === 0 || statuses.includes('failed') ? 'failed' : 'passed',
  assertionResults: statuses.map((status) => ({ status })),
});
const ran = (...testResults: Report['testResults'][number][]): Run => ({
  code: testResults.some(({ status }) => status === 'failed') ? 1 : 0,
  report: { testResults },
});

/** Gives these results one after the other, and notes what was to be run. */
function play(...runs: readonly Run[]) {
  const asked: (readonly string[])[] = [];
  const result = runTwice((files) => runs[asked.push(files) - 1]!);
  return { asked, result };
}

describe('continuous integration', () => {
  it('runs nothing again when all passed', () => {
    const { asked, result } = play(ran(file('a', 'passed', 'skipped'), file('b', 'passed')));
    expect(asked).toEqual([[]]);
    expect(result).toMatchObject({ code: 0, flaky: [] });
    expect(totalsOf(result.report!)).toEqual({ passed: 2, failed: 0, skipped: 1 });
  });

  it('runs a failed file once more, names it as flaky and counts it as passed', () => {
    const { asked, result } = play(
      ran(file('a', 'passed'), file('b', 'failed', 'passed'), file('c')),
      ran(file('b', 'passed', 'passed'), file('c', 'passed', 'todo')),
    );
    expect(asked).toEqual([[], ['b', 'c']]);
    expect(result).toMatchObject({ code: 0, flaky: ['b', 'c'] });
    expect(totalsOf(result.report!)).toEqual({ passed: 4, failed: 0, skipped: 1 });
  });

  it('fails when a file fails twice, and still names the others as flaky', () => {
    const { asked, result } = play(
      ran(file('a', 'failed'), file('b', 'failed', 'passed')),
      ran(file('a', 'passed'), file('b', 'passed', 'failed')),
    );
    expect(asked).toHaveLength(2);
    expect(result).toMatchObject({ code: 1, flaky: ['a'] });
    expect(totalsOf(result.report!)).toEqual({ passed: 2, failed: 1, skipped: 0 });
  });

  it('fails when a file that failed was not run again, or the second run wrote nothing', () => {
    const first = ran(file('a', 'failed'), file('b', 'failed'));
    expect(play(first, ran(file('a', 'passed'))).result).toMatchObject({ code: 1, flaky: ['a'] });
    const { result } = play(first, { code: 0, report: undefined });
    expect(result).toMatchObject({ code: 1, flaky: [] });
    expect(totalsOf(result.report!)).toEqual({ passed: 0, failed: 2, skipped: 0 });
  });

  it('does not repeat a failure that is in no file', () => {
    const { asked, result } = play({ ...ran(file('a', 'passed')), code: 1 });
    expect(asked).toEqual([[]]);
    expect(result).toMatchObject({ code: 1, flaky: [] });
    expect(play({ code: 1, report: undefined }).result).toMatchObject({ code: 1, report: undefined });
  });

  it('counts a file that failed before its tests as one failure', () => {
    expect(totalsOf(ran(file('a'), file('b', 'failed', 'failed', 'skipped')).report!)).toEqual({
      ...{ passed: 0, failed: 3, skipped: 1 },
    });
  });
});
