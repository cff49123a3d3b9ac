/**
 * On which processors the cores of a server stay (PHub, section 3.2.4: a chunk has one core, and
 * with that one cache). It pins nothing itself. Invariant: what `processorsFor` returns this
 * process may use, one for each core.
 */
import { readFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { UsageError } from '../base/index.ts';

const STATUS = '/proc/self/status';

/** Processors that this process may use, which can be fewer than the machine has. */
export function usableProcessors(): readonly number[] {
  const all = cpus().map((_, i) => i);
  if (process.platform !== 'linux') return all;
  try {
    const [, list] = /^Cpus_allowed_list:\s*(\S+)$/m.exec(readFileSync(STATUS, 'utf8')) ?? [];
    return list === undefined ? all : (readProcessors(list) ?? all);
  } catch {
    // Without /proc the kernel decides when a core is pinned.
    return all;
  }
}

/** '0,2-3' as numbers; undefined if it is no such list. */
export function readProcessors(list: string): readonly number[] | undefined {
  const processors: number[] = [];
  for (const part of list.split(',')) {
    const [, first, last = first] = /^(\d{1,4})(?:-(\d{1,4}))?$/.exec(part.trim()) ?? [];
    if (first === undefined || Number(last) < Number(first)) return undefined;
    for (let i = Number(first); i <= Number(last); i++) processors.push(i);
  }
  return processors;
}

/**
 * The processor of each core; undefined: none is pinned. Throws a `UsageError` that names what
 * cannot be.
 */
export function processorsFor(
  pinned: boolean | readonly number[] | undefined,
  cores: number,
  usable: readonly number[] = usableProcessors(),
): readonly number[] | undefined {
  if (pinned === undefined || pinned === false) return undefined;
  if (pinned === true) {
    if (cores <= usable.length) return usable.slice(0, cores);
    throw wrong(
      `${cores} cores cannot each have a processor of their own: this process may use ${usable.length} (${usable.join(', ')}); use fewer cores, or do not pin them`,
      { cores, usable },
    );
  }
  if (pinned.length !== cores) {
    throw wrong(
      `${pinned.length} processor${pinned.length === 1 ? '' : 's'} for ${cores} core${cores === 1 ? '' : 's'}; name one for each core`,
      { cores, pinned },
    );
  }
  for (const [core, processor] of pinned.entries()) {
    if (pinned.indexOf(processor) !== core) {
      throw wrong(`processor ${processor} is named twice; give each core one of its own`, {
        processor,
        core,
      });
    }
    if (!usable.includes(processor)) {
      throw wrong(
        `core ${core} cannot be pinned to processor ${processor}: this process may use ${usable.join(', ')}`,
        { processor, core, usable },
      );
    }
  }
  return pinned;
}

function wrong(fault: string, facts: Record<string, unknown>): UsageError {
  return new UsageError('INVALID_ARGUMENT', fault, facts);
}
