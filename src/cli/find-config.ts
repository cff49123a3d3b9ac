/**
 * What a command works on, as a configuration: a ready-made example by its name, a file, or the folder of a
 * run. Invariant: a word that is none of them is refused with the nearest that is.
 */
import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { didYouMean, UsageError } from '../base/index.ts';
import type { ResolvedConfig } from './config.ts';
import { checkConfig } from './config-check.ts';
import { loadConfigFile, looksLikePath } from './config-file.ts';
import { dataPath, examples } from './examples.ts';
import type { CommandIo } from './io.ts';
import type { Trust } from './run-trust.ts';

export async function findConfig(
  command: string,
  target: string,
  { data, trust }: Pick<Trust, 'trust'> & { readonly data?: string | undefined },
  io: CommandIo,
): Promise<ResolvedConfig> {
  const example = Object.hasOwn(examples, target) ? examples[target] : undefined;
  if (example) {
    const raw = example.configure(dataPath(data, io.env, io.cwd));
    return checkConfig(raw, { source: `The example ${target}`, folder: io.cwd, defaultName: target });
  }
  if (!looksLikePath(target) && !existsSync(resolve(io.cwd, target))) {
    const known = Object.keys(examples);
    throw new UsageError(
      'INVALID_COMMAND',
      `tributary ${command}: ${JSON.stringify(target)} is neither a file nor an example.${didYouMean(target, known)} ` +
        `Examples are ${known.join(', ')}. See: tributary ${command} --help`,
      { target },
    );
  }
  if (data !== undefined) {
    throw new UsageError(
      'INVALID_COMMAND',
      `--data belongs to the ready-made examples; a configuration names its own data. Change the field data in ${target}.`,
      { target },
    );
  }
  return loadConfigFile(target, io.cwd, { trust });
}
