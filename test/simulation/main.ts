/**
 * `npm run sim -- --seeds N [--from K] [--all] [--verbose]`: runs the simulation for so many seeds and prints how often each fault hit each
 * point. The first run in which something does not hold ends it with a trace, and exit code 1; `--seeds 1 --from K`
 * repeats that run exactly.
 */
import { parseArgs } from 'node:util';
import { simulate } from './simulate.ts';

const { values } = parseArgs({
  options: {
    seeds: { type: 'string', default: '2000' },
    from: { type: 'string', default: '0' },
    all: { type: 'boolean', default: false },
    verbose: { type: 'boolean', default: false },
  },
});
const ok = await simulate({
  seeds: Number(values.seeds),
  from: Number(values.from),
  goesOn: values.all,
  isVerbose: values.verbose,
  print: (line) => console.log(line),
});
process.exit(ok ? 0 : 1);
