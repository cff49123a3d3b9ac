/**
 * A run folder, like any configuration in JSON, is data: it may come from somebody else. It can name code, the file of a model
 * function or the commands of machines, and this is where a command decides whether that is run. Runs nothing itself.
 * Invariant: without --trust only a file that the command line names is run.
 */
import { statSync } from 'node:fs';
import { extname, resolve } from 'node:path';
import { UsageError } from '../base/index.ts';
import type { OptionSpecs, OptionValues } from './command.ts';
import type { ResolvedConfig } from './config.ts';
import type { CommandIo } from './io.ts';

export interface Trust {
  /** Whether what a configuration in JSON names may be run. Default false. */
  readonly trust?: boolean | undefined;
  /** The user's own configuration file, absolute: the model function is taken from there. Default: that of the run. */
  readonly config?: string | undefined;
}

/** Of commands that start something. */
export const trustOption = {
  trust: {
    kind: 'flag',
    help: 'Run the code that a run folder or a JSON file names: the file of a model function, commands of machines.',
  },
} as const satisfies OptionSpecs;

/** Of commands that open the model of a run folder. */
export const modelTrustOptions = {
  config: {
    kind: 'text',
    value: 'FILE.ts',
    help: 'Your configuration file of the run, if its model is a function there.',
  },
  trust: {
    kind: 'flag',
    help: 'Run the file that the folder names for such a model. For runs of your own.',
  },
} as const satisfies OptionSpecs;

/** What the command line says of it. */
export function trustOf(
  given: OptionValues<typeof modelTrustOptions>,
  { cwd }: Pick<CommandIo, 'cwd'>,
): Trust {
  return { trust: given.trust, config: given.config === undefined ? undefined : resolve(cwd, given.config) };
}

/** Whether a path is that of a file which is run to be read; a folder may have any name. */
export function isCode(path: string): boolean {
  return /^\.m?[jt]s$/.test(extname(path)) && !statSync(path, { throwIfNoEntry: false })?.isDirectory();
}

/** The file to run for a model function that a configuration names, or a refusal. */
export function trustedModelFile(named: string, source: string, { trust, config }: Trust): string {
  if (config !== undefined) return config;
  if (trust) return named;
  throw new UsageError(
    'CODE_NOT_TRUSTED',
    `The model of ${source} is a function in ${named}, which is not run unless you say so: a run folder may come from somebody else. ` +
      'If both are yours, add --trust, or name your file: tributary train <file> --resume, for other commands --config <file>.',
    { source, file: named },
  );
}

/** Refuses --config where there is nothing to take from it. */
export function refuseConfig(source: string, { config }: Trust): void {
  if (config === undefined) return;
  throw new UsageError(
    'INVALID_COMMAND',
    `--config gives the file of a model function, and the model of ${source} is none. Leave out --config.`,
    { source, file: config },
  );
}

/** Refuses to reach other machines because a JSON file says so: that starts commands. `target` is absolute. */
export function checkMachines(config: ResolvedConfig, target: string, trust: boolean): void {
  if (trust || isCode(target) || !namesMachines(config)) return;
  throw new UsageError(
    'CODE_NOT_TRUSTED',
    `The field on of ${target} names machines, and with them commands to start, which is not done unless you say so: ` +
      'a run folder may come from somebody else. If it is yours, add --trust; or train on this machine by --workers.',
    { target },
  );
}

/** For the commands that a run suggests: the flag without which its own folder is refused. */
export function trustFlag(
  config: ResolvedConfig,
  { forTraining }: { readonly forTraining: boolean },
): string {
  return 'build' in config.model || (forTraining && namesMachines(config)) ? ' --trust' : '';
}

/** A path may lead to any machines. */
function namesMachines({ on }: ResolvedConfig): boolean {
  return typeof on === 'object' && 'machines' in on && on.machines !== undefined;
}
