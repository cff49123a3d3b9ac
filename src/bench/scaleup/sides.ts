/**
 * The sides of `bench scaleup` and their turns: one learner, independent copies, learners by update mode, PyTorch alone, by
 * DDP, and with an exchange by hand. Knows no cases. Invariants: one side at a time is at work, the others sleep or are not there; every round begins with
 * another side; a peer that is not installed is left out and named.
 */
import { TributaryError } from '../../base/index.ts';
import type { UpdateMode } from '../../learners/index.ts';
import { median, PeerGroup } from '../allreduce/index.ts';
import { calibrate, race } from '../allreduce/turns.ts';
import { alternate, type AlternatingSide } from '../alternation.ts';
import { DDP_VARIANTS, ddpGroup } from './ddp-group.ts';
import type { TorchGroupOptions } from '../torch-group.ts';
import { takeLearnersTurn } from './learners-turn.ts';
import type { LearnersRate, LearnersTurnOptions } from './learners-turn.ts';
import { MPI_VARIANTS, mpiGroup } from './mpi-group.ts';
import { SYNCHRONOUS } from './scaleup-case.ts';
import type { ScaleupMode } from './scaleup-case.ts';
import { takeSynchronousTurn } from './synchronous-turn.ts';

/** Peers, all of them PyTorch: by DDP over gloo, and with an exchange written by hand on MPI. */
export const SCALEUP_PEERS = ['ddp', 'mpi'] as const;
export type ScaleupPeer = (typeof SCALEUP_PEERS)[number];

export interface SidesSetting extends Pick<LearnersTurnOptions, 'warmupMs' | 'turnMs' | 'signal'> {
  readonly learners: readonly number[];
  readonly modes: readonly ScaleupMode[];
  readonly rounds: number;
  readonly onProgress: (message: string) => void;
}

export interface BatchSetting extends SidesSetting, Pick<LearnersTurnOptions, 'task' | 'samplesPerStep'> {
  readonly batch: number;
}

/** Medians over the rounds, in samples a second. */
export interface SideFigures {
  readonly single: number;
  ceiling(learners: number): number;
  ours(learners: number, mode: ScaleupMode): LearnersRate;
  /** Null where it was not measured. One process of 'ddp' is PyTorch alone. */
  peer(peer: ScaleupPeer, processes: number): number | null;
}

export interface StartedPeer {
  readonly peer: ScaleupPeer;
  readonly group: PeerGroup;
}

export interface PeersSetting
  extends Pick<SidesSetting, 'learners' | 'signal' | 'onProgress'>, Omit<TorchGroupOptions, 'ranks'> {
  readonly peers: readonly ScaleupPeer[];
}

const starters = {
  ddp: { groupOf: ddpGroup, variants: DDP_VARIANTS },
  mpi: { groupOf: mpiGroup, variants: MPI_VARIANTS },
} as const;

/**
 * A group of each peer for each number of learners; and PyTorch alone, which the speed-ups of all peers are relative to. They
 * go to `started`, also if a later one fails; returns what was left out.
 */
export async function startPeers(setting: PeersSetting, started: StartedPeer[]): Promise<string[]> {
  const { learners, peers } = setting;
  if (peers.length === 0) return [];
  const skipped = [
    await startPeer('ddp', [...new Set([1, ...(peers.includes('ddp') ? learners : [])])], setting, started),
    peers.includes('mpi') ? await startPeer('mpi', learners, setting, started) : undefined,
  ];
  return skipped.filter((reason) => reason !== undefined);
}

/** Returns why it was left out, if it was. */
async function startPeer(
  peer: ScaleupPeer,
  sizes: readonly number[],
  setting: PeersSetting,
  started: StartedPeer[],
): Promise<string | undefined> {
  const { signal, onProgress } = setting;
  for (const ranks of sizes) {
    const command = starters[peer].groupOf({ ...setting, ranks });
    onProgress(`starting ${command.name}`);
    try {
      started.push({ peer, group: await PeerGroup.start(command, { signal }) });
    } catch (error) {
      if (!(error instanceof TributaryError) || error.code !== 'MISSING_COMPONENT') throw error;
      return `${command.name}: ${error.message}`;
    }
  }
  return undefined;
}

export function describePeers(started: readonly StartedPeer[]): readonly object[] {
  return started.map(({ group: { command, commandLine } }) => ({
    ...{ name: command.name, command: commandLine, environment: command.settings },
  }));
}

/** A learner without a server and without locks has nobody to wait for. */
const ALONE: UpdateMode = 'direct lock-free';

interface Side extends AlternatingSide<LearnersRate> {
  readonly name: string;
}

const SINGLE = 'one learner';
const copiesOf = (count: number): string => (count === 1 ? SINGLE : `${count} independent learners`);
const learnersOf = (count: number, mode: ScaleupMode): string => `${count} learner(s), ${mode}`;
const peerOf = (peer: ScaleupPeer, processes: number): string => `${peer}, ${processes} process(es)`;

export async function measureSides(
  setting: BatchSetting,
  started: readonly StartedPeer[],
): Promise<SideFigures> {
  const { batch, rounds, onProgress } = setting;
  const sides = [...ourSides(setting), ...(await peerSides(setting, started))];
  await alternate(sides, rounds, (round) =>
    onProgress(`batch ${batch}: round ${round + 1} of ${rounds}, ${sides.length} sides`),
  );
  const byName = new Map(sides.map(({ name, turns }) => [name, medianOf(turns)]));
  return {
    single: byName.get(SINGLE)!.samplesPerSec,
    ceiling: (learners) => byName.get(copiesOf(learners))!.samplesPerSec,
    ours: (learners, mode) => byName.get(learnersOf(learners, mode))!,
    peer: (peer, processes) => byName.get(peerOf(peer, processes))?.samplesPerSec ?? null,
  };
}

function ourSides(setting: BatchSetting): Side[] {
  const { learners, modes } = setting;
  const side = (name: string, count: number, copies: number, mode: UpdateMode): Side => ({
    ...{ name, turns: [] },
    takeTurn: () => takeLearnersTurn({ ...setting, learners: count, copies, mode }),
  });
  const copies = [...new Set([1, ...learners])].map((count) => side(copiesOf(count), 1, count, ALONE));
  const inLockStep = (count: number): Side => ({
    ...{ name: learnersOf(count, SYNCHRONOUS), turns: [] },
    takeTurn: async () => {
      // In every round but the first it is known.
      const { samplesPerSec } = copies[0]!.turns[0] ?? (await copies[0]!.takeTurn());
      return takeSynchronousTurn({ ...setting, learners: count, singleSamplesPerSec: samplesPerSec });
    },
  });
  const learning = learners.flatMap((count) =>
    modes.map((mode) =>
      mode === SYNCHRONOUS ? inLockStep(count) : side(learnersOf(count, mode), count, 1, mode),
    ),
  );
  return [...copies, ...learning];
}

/** Each by the variant that is faster at this batch size. */
async function peerSides(
  { batch, turnMs, onProgress }: BatchSetting,
  started: readonly StartedPeer[],
): Promise<Side[]> {
  const sides: Side[] = [];
  for (const { peer, group } of started) {
    const { ranks } = group.command;
    onProgress(`batch ${batch}: warming up ${group.command.name}`);
    // In the terms of a turn: a batch is its bytes, a step is its operation.
    const contender = await calibrate(group, starters[peer].variants, { bytes: batch, ranks, turnMs });
    const takeTurn = async (): Promise<LearnersRate> => {
      const micros = (await race([contender], 1)).get(contender)!;
      return { samplesPerSec: (ranks * batch * 1e6) / micros, meanStaleness: 0 };
    };
    sides.push({ name: peerOf(peer, ranks), takeTurn, turns: [] });
  }
  return sides;
}

function medianOf(rates: readonly LearnersRate[]): LearnersRate {
  return {
    samplesPerSec: median(rates.map(({ samplesPerSec }) => samplesPerSec)),
    meanStaleness: median(rates.map(({ meanStaleness }) => meanStaleness)),
  };
}
