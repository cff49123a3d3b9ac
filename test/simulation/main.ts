/**
 * `npm run sim -- --seeds N [--from K] [--jobs J] [--all] [--verbose | --quiet]`: runs the simulation for so many seeds, in as many processes as
 * there are processors, and prints how often each fault hit each point. A run in which something does not hold is printed
 * as a trace, and the exit code is 1; `--seeds 1 --from K` repeats that run exactly. It compiles itself first: plain
 * JavaScript is a third faster than what is compiled while it runs.
 */
import { fork, spawn } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { compilePrograms } from '../support/compile-programs.ts';
import { compiledPath } from '../support/test-program.ts';
import { addUp, printSummary, simulate } from './simulate.ts';
import type { Summary } from './simulate.ts';

const { values } = parseArgs({
  options: {
    seeds: { type: 'string', default: '2000' },
    from: { type: 'string', default: '0' },
    jobs: { type: 'string', default: String(availableParallelism()) },
    all: { type: 'boolean', default: false },
    quiet: { type: 'boolean', default: false },
    verbose: { type: 'boolean', default: false },
  },
});
const [seeds, from] = [countOf('seeds', values.seeds), countOf('from', values.from)];
const jobs = Math.max(1, Math.min(countOf('jobs', values.jobs), seeds));
const print = (line: string): void => console.log(line);
const options = { isVerbose: values.verbose, isQuiet: values.quiet, goesOn: values.all, print };

if (import.meta.url.endsWith('.ts')) {
  compilePrograms();
  const compiled = compiledPath(fileURLToPath(import.meta.url))!;
  spawn(process.execPath, [compiled, ...process.argv.slice(2)], { stdio: 'inherit' }).on('exit', (code) => {
    process.exitCode = code ?? 1;
  });
} else if (process.send !== undefined) {
  process.send(await simulate({ ...options, seeds, from }));
  process.disconnect();
} else {
  const startedMs = performance.now();
  const parts = jobs === 1 ? [await simulate({ ...options, seeds, from })] : await inParallel();
  const summary = addUp(parts);
  printSummary(summary, (performance.now() - startedMs) / 1000, print);
  process.exitCode = summary.failed > 0 ? 1 : 0;
}

/** The first that finds something ends the others, unless all findings are wanted. */
function inParallel(): Promise<Summary[]> {
  const share = Math.ceil(seeds / jobs);
  let isStopping = false;
  const stop = (): void => {
    isStopping = true;
    for (const child of children) child.kill();
  };
  const children = Array.from({ length: jobs }, (_, i) => {
    const own = Math.min(share, seeds - i * share);
    const flags = (['all', 'verbose', 'quiet'] as const).flatMap((flag) =>
      values[flag] ? [`--${flag}`] : [],
    );
    const args = ['--seeds', String(Math.max(0, own)), '--from', String(from + i * share), ...flags];
    return fork(fileURLToPath(import.meta.url), args);
  });
  return Promise.all(
    children.map(
      (child) =>
        new Promise<Summary>((resolve, reject) => {
          let summary: Summary | undefined;
          child.on('message', (message) => {
            summary = message as Summary;
            if (summary.failed > 0 && !values.all) stop();
          });
          child.on('error', reject);
          child.on('exit', (code, signal) => {
            if (summary) resolve(summary);
            else if (isStopping)
              resolve({ seeds: 0, failed: 0, events: 0, virtualMs: 0, fewest: Infinity, counts: [] });
            else {
              stop();
              reject(
                new Error(
                  `process ${child.pid} of the simulation ended by ${signal ?? `exit code ${code}`} before its seeds were done`,
                ),
              );
            }
          });
        }),
    ),
  );
}

function countOf(name: string, text: string): number {
  const count = Number(text);
  if (Number.isInteger(count) && count >= 0) return count;
  console.error(`--${name} is '${text}'; give a whole number`);
  process.exit(2);
}
