/**
 * How our sides of `bench runner` are started, and independent copies as one side. Not the conversation with them, which is that of
 * `bench allreduce`: a turn's bytes are the samples in a batch of one worker, its operations are training steps.
 * Invariant: workers differ from copies in nothing but `getRunner`.
 */
import { fileURLToPath } from 'node:url';
import type { GroupCommand, PeerGroup } from '../allreduce/index.ts';
import type { Contender } from '../allreduce/turns.ts';
import type { RunnerOrder } from './runner-program.ts';

export interface OurGroupOptions extends Omit<RunnerOrder, 'control'> {
  readonly name: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

export function ourGroup({ name, env, ...order }: OurGroupOptions): GroupCommand {
  // From the sources (tests) the program is TypeScript and needs a loader; built, it is JavaScript beside this file.
  const fromSources = import.meta.url.endsWith('.ts');
  const program = fileURLToPath(new URL(`./runner-program.${fromSources ? 'ts' : 'js'}`, import.meta.url));
  const loader = fromSources ? ['--import', import.meta.resolve('tsx')] : [];
  return {
    ...{ name, ranks: order.workers, env, settings: {}, install: 'npm install tributary' },
    // One process, which starts the other workers.
    processes: (control) => [
      {
        file: process.execPath,
        args: [...loader, program, JSON.stringify({ ...order, control } satisfies RunnerOrder)],
      },
    ],
  };
}

/** Groups that take their turns at the same time and know nothing of each other; a turn's time is such that their rates add up. */
export function together(name: string, groups: readonly PeerGroup[]): Contender['group'] {
  return {
    command: { ...groups[0]!.command, name, ranks: groups.length },
    turn: async (turn) => {
      const results = await Promise.all(groups.map((group) => group.turn(turn)));
      const stepsPerMicro = results.reduce((sum, { micros }) => sum + 1 / micros, 0);
      return { micros: groups.length / stepsPerMicro, ok: results.every(({ ok }) => ok) };
    },
  };
}
