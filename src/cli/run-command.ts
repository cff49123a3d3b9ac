/**
 * From arguments to an exit code: chooses the command, parses, runs, and turns every failure into one line or one JSON
 * object. Invariant: it never throws and never ends the process.
 */
import {
  didYouMean,
  InternalError,
  packageVersion,
  TributaryError,
  UsageError,
  type ErrorCode,
} from '../base/index.ts';
import { WORKER_MARK } from '../runner/index.ts';
import { parseArguments, type Command } from './command.ts';
import { benchCommand } from './commands/bench.ts';
import { evaluateCommand } from './commands/evaluate.ts';
import { exportCommand } from './commands/export.ts';
import { infoCommand } from './commands/info.ts';
import { planCommand } from './commands/plan.ts';
import { predictCommand } from './commands/predict.ts';
import { schedulerCommand } from './commands/scheduler.ts';
import { createServiceCommand, endServiceCommand, listServicesCommand } from './commands/server-service.ts';
import { serverCommand } from './commands/server.ts';
import { trainCommand } from './commands/train.ts';
import { commandHelp, generalHelp } from './help.ts';
import { exitCodeOf, ExitCode, red, type CommandIo } from './io.ts';

export const commands: readonly Command[] = [
  trainCommand,
  evaluateCommand,
  predictCommand,
  exportCommand,
  planCommand,
  serverCommand,
  createServiceCommand,
  endServiceCommand,
  listServicesCommand,
  schedulerCommand,
  benchCommand,
  infoCommand,
];

/** Codes of a wrong command line or configuration, what these name included: the exit code is 2. */
export const USAGE_CODES: ReadonlySet<string> = new Set<ErrorCode>([
  'INVALID_ARGUMENT',
  'INVALID_CONFIG',
  'INVALID_COMMAND',
  'CODE_NOT_TRUSTED',
  'FILE_NOT_FOUND',
  'OUTPUT_EXISTS',
]);

/** The command that the words begin with; names may have several words, and the longest counts. */
export function commandOf(words: readonly string[]): Command | undefined {
  const begun = commands.filter(({ name }) => name.split(' ').every((word, i) => words[i] === word));
  return begun.sort((a, b) => b.name.length - a.name.length)[0];
}

export async function runCommand(argv: readonly string[], io: CommandIo): Promise<number> {
  try {
    return await dispatch(argv, io);
  } catch (error) {
    return report(error, argv, io);
  }
}

async function dispatch(argv: readonly string[], io: CommandIo): Promise<number> {
  const [name] = argv;
  if (name === '--version' || name === '-v') {
    io.stdout.write(`${packageVersion()}\n`);
    return ExitCode.ok;
  }
  const asked = name === undefined || name === '--help' || name === '-h';
  if (asked || name === 'help') {
    const about = commandOf(argv.slice(1));
    const text = about ? commandHelp(about) : generalHelp(commands, packageVersion());
    (name === undefined ? io.stderr : io.stdout).write(text);
    return name === undefined ? ExitCode.usage : ExitCode.ok;
  }
  const command = commandOf(argv);
  if (!command) {
    const names = commands.map((candidate) => candidate.name).filter((candidate) => !candidate.includes(' '));
    const hint = didYouMean(name, names);
    const known = names.join(', ');
    throw new UsageError(
      'INVALID_COMMAND',
      `There is no command ${JSON.stringify(name)}; there are ${known}.${hint} See: tributary --help`,
      { command: name },
    );
  }
  const { operands, options } = parseArguments(command, argv.slice(command.name.split(' ').length));
  if (options['help'] === true) {
    io.stdout.write(commandHelp(command));
    return ExitCode.ok;
  }
  return command.run(operands, options, io);
}

/** The arguments may be what is wrong, so they are looked at as plain words. */
function report(error: unknown, argv: readonly string[], io: CommandIo): number {
  const known = error instanceof TributaryError;
  const code = known ? error.code : 'BROKEN_INVARIANT';
  const message = error instanceof Error ? error.message : String(error);
  const facts = known ? error.facts : {};
  // The first process hears of a worker's end by its error output.
  const isWorker = io.env[WORKER_MARK] === '1';
  if (argv.includes('--json') && !isWorker)
    io.stdout.write(`${JSON.stringify({ error: { code, message, facts } })}\n`);
  else io.stderr.write(`${red(io, `error [${code}]:`)} ${message}\n`);
  const wantsStack = argv.includes('--verbose') || !known || error instanceof InternalError;
  if (wantsStack && error instanceof Error) io.stderr.write(`${stackOf(error)}\n`);
  if (io.signal.aborted) return exitCodeOf(io.signal);
  return USAGE_CODES.has(code) ? ExitCode.usage : ExitCode.failure;
}

function stackOf(error: Error): string {
  const frames = (error.stack ?? '').split('\n').filter((line) => /^\s+at /.test(line));
  const cause =
    error.cause instanceof Error ? `\ncaused by ${error.cause.message}\n${stackOf(error.cause)}` : '';
  return frames.join('\n') + cause;
}
