/**
 * The sides of `bench runner` and their turns: one device, independent copies of it, workers by `getRunner`, PyTorch alone and by
 * DDP. Knows no cases. Invariants: one side at a time is at work, the others sleep; no side takes a turn before the losses of all that
 * share batches were compared; a peer that is not installed is left out and named.
 */
import { randomBytes } from 'node:crypto';
import { InternalError, TributaryError } from '../../base/index.ts';
import { alternate, type AlternatingSide } from '../alternation.ts';
import { median, PeerGroup } from '../allreduce/index.ts';
import type { GroupCommand } from '../allreduce/index.ts';
import { calibrate, type Contender } from '../allreduce/turns.ts';
import { torchGroup } from '../torch-group.ts';
import { trainOnOneDevice } from './one-device-losses.ts';
import { ourGroup, together } from './our-groups.ts';
import { writePeerTask } from './peer-task.ts';
import { madeUpImages, runnerModels, type RunnerModel } from './runner-models.ts';
import { IN_STEP } from './meeting-place.ts';
import { fromWord, type StepParts } from './step-parts.ts';

export interface SidesSetting {
  readonly workers: number;
  /** Of each worker. */
  readonly batch: number;
  readonly rounds: number;
  readonly turnMs: number;
  /** Whether PyTorch is measured too. */
  readonly withPeers: boolean;
  /** Of this run alone. */
  readonly folder: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal: AbortSignal | undefined;
  readonly onProgress: (message: string) => void;
}

/** Medians over the rounds. Rates are samples a second of all processes of the side together. */
export interface SideFigures extends StepParts {
  readonly single: number;
  readonly ceiling: number;
  /** Of the copies of the ceiling when they wait for each other behind every step, and still exchange nothing. */
  readonly inStep: number;
  readonly workers: number;
  /** Null where PyTorch was not measured. */
  readonly ddp: number | null;
  readonly ddpSingle: number | null;
  /** How the peers were started, and by which variant they were the fastest. */
  readonly peers: readonly object[];
  /** What was left out, and why. */
  readonly skipped: readonly string[];
}

/** Compared before anything is measured. */
export const COMPARED_STEPS = 3;
const OUR_VARIANTS = ['train'] as const;

interface Turned {
  readonly samplesPerSec: number;
  readonly word: string | undefined;
}

interface Side extends AlternatingSide<Turned> {
  readonly contender: Contender;
}

export async function measureSides(model: RunnerModel, setting: SidesSetting): Promise<SideFigures> {
  const { workers, batch, rounds, signal, onProgress } = setting;
  const { title, torchVariants } = runnerModels[model];
  const groups: PeerGroup[] = [];
  const start = async (command: GroupCommand): Promise<PeerGroup> => {
    onProgress(`${title}: starting ${command.name}`);
    const group = await PeerGroup.start(command, { signal });
    groups.push(group);
    return group;
  };
  try {
    const { ours, peers } = await commandsFor(model, setting);
    const working = await start(ours.workers);
    const copies: PeerGroup[] = [];
    for (const command of ours.copies) copies.push(await start(command));
    const [torch, skipped] = await startPeers(peers, start);
    const side = async (group: Contender['group'], variants: readonly string[]): Promise<Side> => {
      onProgress(`${title}: warming up ${group.command.name}`);
      const { ranks } = group.command;
      const contender = await calibrate(group, variants, { bytes: batch, ranks, turnMs: setting.turnMs });
      return { contender, takeTurn: () => takeTurn(contender), turns: [] };
    };
    const single = await side(copies[0]!, OUR_VARIANTS);
    const ceiling = await side(together(`${workers} independent copies`, copies), OUR_VARIANTS);
    const inStep = await side(together(`${workers} copies in step`, copies), [IN_STEP]);
    const sharing = await side(working, OUR_VARIANTS);
    const torchSingle = torch && (await side(torch[0], torchVariants));
    const ddp = torch && (await side(torch[1], torchVariants));
    const sides = [single, ceiling, inStep, sharing, torchSingle, ddp].filter((one) => one !== undefined);
    await alternate(sides, rounds, (round) =>
      onProgress(`${title}: round ${round + 1} of ${rounds}, ${sides.length} sides`),
    );
    const parts = sharing.turns.map(({ word }) => fromWord(word));
    return {
      ...{ single: rateOf(single), ceiling: rateOf(ceiling), inStep: rateOf(inStep) },
      workers: rateOf(sharing),
      ...{ ddp: ddp ? rateOf(ddp) : null, ddpSingle: torchSingle ? rateOf(torchSingle) : null },
      computeMs: median(parts.map(({ computeMs }) => computeMs)),
      waitMs: median(parts.map(({ waitMs }) => waitMs)),
      ...{ peers: [torchSingle, ddp].flatMap((one) => (one ? [describe(one, groups)] : [])), skipped },
    };
  } finally {
    await Promise.all(groups.map((group) => group.close()));
  }
}

interface Commands {
  readonly ours: { readonly workers: GroupCommand; readonly copies: readonly GroupCommand[] };
  /** One process alone, then all; none if peers are not wanted. */
  readonly peers: readonly GroupCommand[];
}

async function commandsFor(model: RunnerModel, setting: SidesSetting): Promise<Commands> {
  const { workers, batch, folder, env, withPeers } = setting;
  const described = runnerModels[model];
  const totalBatch = workers * batch;
  const dataset = madeUpImages(described, totalBatch);
  const steps = COMPARED_STEPS;
  const alone = await trainOnOneDevice(described, { dataset, workers, batchSize: totalBatch, steps });
  const shared = { model, batch, totalBatch, env };
  const meetingName = `meeting-${process.pid}-${randomBytes(6).toString('hex')}`;
  const ours = {
    workers: ourGroup({ ...shared, workers, name: `${workers} workers by getRunner`, losses: alone.losses }),
    copies: Array.from({ length: workers }, (_, copy) =>
      ourGroup({
        ...{ ...shared, workers: 1, name: copy === 0 ? 'one device' : `copy ${copy + 1}`, losses: [] },
        meeting: { name: meetingName, index: copy, count: workers },
      }),
    ),
  };
  if (!withPeers) return { ours, peers: [] };
  const taskFile = await writePeerTask({ model, dataset, oneDevice: alone, batch, workers, folder });
  const peers = [1, workers].map((ranks) =>
    torchGroup('ddp_models_peer.py', { ranks, taskFile, folder, env }),
  );
  return { ours, peers };
}

/** All of them, or none and why. */
async function startPeers(
  commands: readonly GroupCommand[],
  start: (command: GroupCommand) => Promise<PeerGroup>,
): Promise<[torch: [PeerGroup, PeerGroup] | undefined, skipped: string[]]> {
  const [single, all] = commands;
  if (!single || !all) return [undefined, []];
  try {
    return [[await start(single), await start(all)], []];
  } catch (error) {
    if (!(error instanceof TributaryError) || error.code !== 'MISSING_COMPONENT') throw error;
    return [undefined, [error.message]];
  }
}

async function takeTurn({ group, turn }: Contender): Promise<Turned> {
  const { micros, ok, algorithm } = await group.turn(turn);
  if (ok) return { samplesPerSec: (group.command.ranks * turn.bytes * 1e6) / micros, word: algorithm };
  throw new InternalError(
    'BROKEN_INVARIANT',
    `${group.command.name} (${turn.algorithm}) ended a turn with different or infinite weights; the comparison would be void, please report it`,
    { side: group.command.name, ...turn },
  );
}

function rateOf({ turns }: Side): number {
  return median(turns.map(({ samplesPerSec }) => samplesPerSec));
}

function describe({ contender: { group, turn } }: Side, groups: readonly PeerGroup[]): object {
  const { name, settings } = group.command;
  const commandLine = groups.find((one) => one === group)?.commandLine;
  return { name, variant: turn.algorithm, command: commandLine, environment: settings };
}
