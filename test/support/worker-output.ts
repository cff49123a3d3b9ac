/** What workers write to the error output, without what only tells that the machine is busy. */

const WAITS = /has waited [\d.]+ s/;

/** Reports of long waits come on a loaded machine in any run; everything else is kept. */
export function withoutWaits(stderr: string): string {
  return stderr
    .split('\n')
    .filter((line) => !WAITS.test(line))
    .join('\n');
}
