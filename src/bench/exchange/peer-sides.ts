/**
 * The peers of `bench exchange` as running groups, and the comparison of what they computed with what we did. Not how they
 * are started at their best (peer-commands.ts). Invariant: a peer that is not installed is left out and named; one that
 * computes something else is an error.
 */
import { InternalError, TributaryError } from '../../base/index.ts';
import { PeerGroup } from '../allreduce/index.ts';
import type { Contender } from '../allreduce/turns.ts';
import {
  GLOO_VARIANTS,
  glooExchangeGroup,
  OPEN_MPI_VARIANTS,
  openMpiExchangeGroup,
} from './peer-commands.ts';
import type { ExchangePeerOptions } from './peer-commands.ts';

export const EXCHANGE_PEERS = ['gloo', 'openmpi'] as const;
export type ExchangePeer = (typeof EXCHANGE_PEERS)[number];

export interface PeerSide {
  readonly peer: ExchangePeer;
  readonly group: PeerGroup;
  readonly variants: readonly string[];
}

export interface PeerSidesOptions extends ExchangePeerOptions {
  readonly peers: readonly ExchangePeer[];
  readonly signal?: AbortSignal | undefined;
  readonly onProgress: (message: string) => void;
}

const VARIANTS = { gloo: GLOO_VARIANTS, openmpi: OPEN_MPI_VARIANTS } as const;
const COMMANDS = { gloo: glooExchangeGroup, openmpi: openMpiExchangeGroup } as const;

/** Those that are installed go to `started`, also if a later one fails; returns what was left out, and why. */
export async function startPeers(options: PeerSidesOptions, started: PeerSide[]): Promise<string[]> {
  const { peers, signal, onProgress } = options;
  const skipped: string[] = [];
  for (const peer of peers) {
    const command = COMMANDS[peer](options);
    onProgress(`starting ${command.name}`);
    try {
      const group = await PeerGroup.start(command, { signal });
      started.push({ peer, group, variants: VARIANTS[peer] });
    } catch (error) {
      if (!(error instanceof TributaryError) || error.code !== 'MISSING_COMPONENT') throw error;
      skipped.push(`${command.name}: ${error.message}`);
      onProgress(`${command.name} is left out: ${error.message}`);
    }
  }
  return skipped;
}

/** All sides report the checksum of the weights after the same first exchanges. */
export function checkSameWork(contenders: readonly Contender[]): void {
  const [ours] = contenders;
  const other = contenders.find(({ chosen }) => chosen !== ours?.chosen);
  if (other === undefined) return;
  throw new InternalError(
    'BROKEN_INVARIANT',
    `the weights of ${other.group.command.name} have the checksum ${other.chosen}, those of ${ours!.group.command.name} ${ours!.chosen}; the sides do different work and the comparison would be void, please report it`,
    { peer: other.group.command.name, expected: ours!.chosen, actual: other.chosen },
  );
}
