/**
 * What a command is: its words, its options as data (from which both the parser and the help text are made), and a
 * function. Invariant: `run` gets values that are of the declared kind; it never parses arguments itself.
 */
import { parseArgs } from 'node:util';
import { didYouMean, UsageError } from '../base/index.ts';
import type { CommandIo } from './io.ts';

export interface OptionSpec {
  /**
   * 'count' is a whole number of 0 or more, 'number' any finite one, 'texts' a text that may be given several times.
   */
  readonly kind: 'flag' | 'text' | 'texts' | 'number' | 'count';
  /** What the help calls the value. Default: by kind. */
  readonly value?: string;
  readonly help: string;
  /** The only values accepted. */
  readonly choices?: readonly string[];
}

export type OptionSpecs = Readonly<Record<string, OptionSpec>>;

interface KindValues {
  readonly flag: boolean;
  readonly text: string;
  readonly texts: readonly string[];
  readonly number: number;
  readonly count: number;
}
type ValueOf<K extends OptionSpec['kind']> = KindValues[K];
export type OptionValues<S extends OptionSpecs> = { readonly [K in keyof S]?: ValueOf<S[K]['kind']> };

export interface Command<S extends OptionSpecs = OptionSpecs> {
  readonly name: string;
  /** One line for the list of commands. */
  readonly summary: string;
  /** What follows the name: `<run folder> [text...]`. */
  readonly operands: string;
  /** How many operands: [least, most]. */
  readonly operandCount: readonly [number, number];
  readonly options: S;
  /** A paragraph below the options. */
  readonly details?: string;
  readonly examples: readonly string[];
  /** Whether it goes on when nobody reads what it prints any more, as that is not what it is run for. Default false. */
  readonly outlivesReader?: boolean;
  run(operands: readonly string[], options: OptionValues<S>, io: CommandIo): Promise<number>;
}

/** Keeps the types of the options and forgets them for the table of commands. */
export function defineCommand<const S extends OptionSpecs>(command: Command<S>): Command {
  return command;
}

/** Every command takes these. */
export const globalOptions = {
  json: { kind: 'flag', help: 'Write JSON instead of text.' },
  verbose: { kind: 'flag', help: 'Show where an error came from.' },
  help: { kind: 'flag', help: 'Show this text.' },
} as const satisfies OptionSpecs;

export interface ParsedArguments {
  readonly operands: readonly string[];
  readonly options: Readonly<Record<string, ValueOf<OptionSpec['kind']>>>;
}

export function parseArguments(command: Command, argv: readonly string[]): ParsedArguments {
  const specs: OptionSpecs = { ...command.options, ...globalOptions };
  const declared = Object.fromEntries(
    Object.entries(specs).map(([name, { kind }]) => [
      name,
      {
        type: kind === 'flag' ? ('boolean' as const) : ('string' as const),
        ...(name === 'help' ? { short: 'h' } : {}),
      },
    ]),
  );
  const { tokens } = parseArgs({
    args: [...argv],
    options: declared,
    strict: false,
    tokens: true,
    allowPositionals: true,
  });
  const operands: string[] = [];
  const options: Record<string, ValueOf<OptionSpec['kind']>> = {};
  for (const token of tokens) {
    if (token.kind === 'positional') operands.push(token.value);
    if (token.kind !== 'option') continue;
    const spec = Object.hasOwn(specs, token.name) ? specs[token.name] : undefined;
    if (!spec) {
      const hint = didYouMean(token.name, Object.keys(specs), '--');
      throw invalid(command, `has no option ${token.rawName}.${hint}`, { option: token.rawName });
    }
    if (!token.inlineValue && isOption(specs, token.value)) {
      throw invalid(
        command,
        `needs a value after --${token.name}: ${valueName(spec)}; ${token.value} follows.`,
        { option: token.name, actual: token.value },
      );
    }
    const value = readValue(command, token.name, spec, token.value);
    const before = (options[token.name] ?? []) as readonly string[];
    options[token.name] = spec.kind === 'texts' ? [...before, value as string] : value;
  }
  if (options['help'] !== true) checkOperands(command, operands);
  return { operands, options };
}

/**
 * Whether a word is the name of an option, with or without its value; whoever means it as a value writes
 * `--option=--word`.
 */
function isOption(specs: OptionSpecs, word: string | undefined): boolean {
  const name = /^--([^=]+)/.exec(word ?? '')?.[1];
  return name !== undefined && Object.hasOwn(specs, name);
}

function readValue(
  command: Command,
  name: string,
  spec: OptionSpec,
  given: string | undefined,
): string | number | boolean {
  const expected = valueName(spec);
  if (spec.kind === 'flag') {
    if (given === undefined) return true;
    throw invalid(command, `takes no value for --${name}, got ${JSON.stringify(given)}.`, { option: name });
  }
  if (given === undefined)
    throw invalid(command, `needs a value after --${name}: ${expected}.`, { option: name });
  if (spec.choices && !spec.choices.includes(given)) {
    const known = spec.choices.join(', ');
    throw invalid(
      command,
      `takes ${known} for --${name}, got ${JSON.stringify(given)}.${didYouMean(given, spec.choices)}`,
      { option: name, actual: given },
    );
  }
  if (spec.kind === 'text' || spec.kind === 'texts') return given;
  const value = given.trim() === '' ? NaN : Number(given);
  const fits = spec.kind === 'count' ? Number.isSafeInteger(value) && value >= 0 : Number.isFinite(value);
  if (fits) return value;
  const wanted = spec.kind === 'count' ? 'a whole number of 0 or more' : 'a number';
  throw invalid(command, `takes ${wanted} for --${name}, got ${JSON.stringify(given)}.`, {
    option: name,
    actual: given,
  });
}

function checkOperands(command: Command, operands: readonly string[]): void {
  const [least, most] = command.operandCount;
  if (operands.length >= least && operands.length <= most) return;
  const fault =
    operands.length < least
      ? `needs ${command.operands}`
      : `takes ${most === 0 ? 'no operands' : `at most ${most} operand${most === 1 ? '' : 's'}`}, got ${operands.length} (${operands.join(' ')})`;
  throw invalid(command, `${fault}.`, { operands });
}

export function valueName({ kind, value, choices }: OptionSpec): string {
  return value ?? choices?.join('|') ?? (kind.startsWith('text') ? 'TEXT' : kind === 'count' ? 'N' : 'X');
}

function invalid(command: Command, fault: string, facts: Record<string, unknown>): UsageError {
  return new UsageError(
    'INVALID_COMMAND',
    `tributary ${command.name} ${fault} See: tributary ${command.name} --help`,
    { command: command.name, ...facts },
  );
}
