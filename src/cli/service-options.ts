/**
 * The options of a service on the command line: of one that a server has from its start, and of one
 * that is created over the network. Data only; what they mean is the business of `src/server`.
 */
import type { OptionSpecs } from './command.ts';

/** Names become names of files: no path, and nothing hidden. */
export const SERVICE_NAME = /^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$/;

export const serviceOptions = {
  durability: {
    kind: 'text',
    choices: ['process', 'disk'],
    help: 'What acknowledged pushes of asynchronous training survive, with --folder of the server: the end of the process, or a power cut too. Default process.',
  },
  'lost-workers': {
    kind: 'text',
    choices: ['wait', 'release'],
    help: 'wait: until a lost worker was started again, then back to the last checkpoint. release: go on without it. Default release.',
  },
  'grace-ms': {
    kind: 'count',
    help: 'release: how long a worker may take to come back, in milliseconds. Default 5000.',
  },
  'max-bytes': {
    kind: 'count',
    help: 'Memory that the service may take. Default: of those at the start an equal share of 4 GiB, of one that is created later 2 GiB.',
  },
  'max-log-bytes': {
    kind: 'count',
    help: 'What each service may write to its logs of asynchronous pushes between two checkpoints, with --folder; up to three times as much is kept. Default 68719476736: 64 GiB.',
  },
} as const satisfies OptionSpecs;
