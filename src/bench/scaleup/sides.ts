/**
 * The sides of `bench scaleup` and their turns: one learner, independent copies, learners by update mode, PyTorch alone and by
 * DDP. Knows no cases. Invariants: one side at a time is at work, the others sleep or are not there; every round begins with
 * another side; a peer that is not installed is left out and named.
 */
import { TributaryError } from '../../base/index.ts';
import type { UpdateMode } from '../../learners/index.ts';
import { median, PeerGroup } from '../allreduce/index.ts';
import { calibrate, race } from '../allreduce/turns.ts';
import { DDP_VARIANTS, ddpGroup } from './ddp-group.ts';
import type { DdpGroupOptions } from './ddp-group.ts';
import { takeLearnersTurn } from './learners-turn.ts';
import type { LearnersRate, LearnersTurnOptions } from './learners-turn.ts';

export interface SidesSetting extends Pick<LearnersTurnOptions, 'warmupMs' | 'turnMs' | 'signal'> {
  readonly learners: readonly number[];
  readonly modes: readonly UpdateMode[];
  readonly rounds: number;
  readonly onProgress: (message: string) => void;
}

export interface BatchSetting
  extends SidesSetting, Pick<LearnersTurnOptions, 'source' | 'samplesPerStep' | 'hasBegun'> {
  readonly batch: number;
}

/** Medians over the rounds, in samples a second. */
export interface SideFigures {
  readonly single: number;
  ceiling(learners: number): number;
  ours(learners: number, mode: UpdateMode): LearnersRate;
  /** Null where it was not measured. */
  torch(processes: number): number | null;
}

/** By the number of processes. */
export type TorchGroups = Map<number, PeerGroup>;

export type TorchSetting = Pick<SidesSetting, 'learners' | 'signal' | 'onProgress'> &
  Omit<DdpGroupOptions, 'ranks'>;

/** One process, and a group for each number of learners. They go to `started`, also if a later one fails; returns what was left out. */
export async function startTorch(setting: TorchSetting, started: TorchGroups): Promise<string[]> {
  const { learners, signal, onProgress } = setting;
  for (const ranks of new Set([1, ...learners])) {
    const command = ddpGroup({ ...setting, ranks });
    onProgress(`starting ${command.name}`);
    try {
      started.set(ranks, await PeerGroup.start(command, { signal }));
    } catch (error) {
      if (!(error instanceof TributaryError) || error.code !== 'MISSING_COMPONENT') throw error;
      return [`${command.name}: ${error.message}`];
    }
  }
  return [];
}

export function describeGroups(groups: TorchGroups): readonly object[] {
  return [...groups.values()].map(({ command, commandLine }) => ({
    ...{ name: command.name, command: commandLine, environment: command.settings },
  }));
}

/** A learner without a server and without locks has nobody to wait for. */
const ALONE: UpdateMode = 'direct lock-free';

interface Side {
  readonly name: string;
  readonly takeTurn: () => Promise<LearnersRate>;
  readonly rates: LearnersRate[];
}

const SINGLE = 'one learner';
const copiesOf = (count: number): string => (count === 1 ? SINGLE : `${count} independent learners`);
const learnersOf = (count: number, mode: UpdateMode): string => `${count} learner(s), ${mode}`;
const torchOf = (processes: number): string => `PyTorch, ${processes} process(es)`;

export async function measureSides(setting: BatchSetting, torch: TorchGroups): Promise<SideFigures> {
  const { batch, rounds, onProgress } = setting;
  const sides = [...ourSides(setting), ...(await torchSides(setting, torch))];
  for (let round = 0; round < rounds; round++) {
    onProgress(`batch ${batch}: round ${round + 1} of ${rounds}, ${sides.length} sides`);
    for (let i = 0; i < sides.length; i++) {
      const side = sides[(i + round) % sides.length]!;
      side.rates.push(await side.takeTurn());
    }
  }
  const byName = new Map(sides.map(({ name, rates }) => [name, medianOf(rates)]));
  return {
    single: byName.get(SINGLE)!.samplesPerSec,
    ceiling: (learners) => byName.get(copiesOf(learners))!.samplesPerSec,
    ours: (learners, mode) => byName.get(learnersOf(learners, mode))!,
    torch: (processes) => byName.get(torchOf(processes))?.samplesPerSec ?? null,
  };
}

function ourSides(setting: BatchSetting): Side[] {
  const { learners, modes } = setting;
  const side = (name: string, count: number, copies: number, mode: UpdateMode): Side => ({
    ...{ name, rates: [] },
    takeTurn: () => takeLearnersTurn({ ...setting, learners: count, copies, mode }),
  });
  return [
    ...[...new Set([1, ...learners])].map((count) => side(copiesOf(count), 1, count, ALONE)),
    ...learners.flatMap((count) => modes.map((mode) => side(learnersOf(count, mode), count, 1, mode))),
  ];
}

/** Each by the variant that is faster at this batch size. */
async function torchSides({ batch, turnMs, onProgress }: BatchSetting, torch: TorchGroups): Promise<Side[]> {
  const sides: Side[] = [];
  for (const [ranks, group] of torch) {
    onProgress(`batch ${batch}: warming up ${group.command.name}`);
    // In the terms of a turn: a batch is its bytes, a step is its operation.
    const contender = await calibrate(group, DDP_VARIANTS, { bytes: batch, ranks, turnMs });
    const takeTurn = async (): Promise<LearnersRate> => {
      const micros = (await race([contender], 1)).get(contender)!;
      return { samplesPerSec: (ranks * batch * 1e6) / micros, meanStaleness: 0 };
    };
    sides.push({ name: torchOf(ranks), takeTurn, rates: [] });
  }
  return sides;
}

function medianOf(rates: readonly LearnersRate[]): LearnersRate {
  return {
    samplesPerSec: median(rates.map(({ samplesPerSec }) => samplesPerSec)),
    meanStaleness: median(rates.map(({ meanStaleness }) => meanStaleness)),
  };
}
