/**
 * Which workers form which client, and what share of a batch each has. Pure. Invariant: clients are
 * runs of workers, as even as can be; the shares of all workers are the whole batch, each sample
 * once.
 */
import { batchPart, type Part } from '../data/index.ts';
import { clientOf } from '../kvstore/index.ts';
import type { Clients, ResolvedOn } from './on.ts';

export interface ClientLayout {
  /** This worker's client. */
  readonly client: number;
  readonly clients: number;
  /** Of its workers, the first of which deals with the servers. */
  readonly ranks: readonly number[];
  /** The first workers of all clients. */
  readonly leaders: readonly number[];
  /** This worker's place in its client. */
  readonly index: number;
  readonly part: Part;
  readonly stepSamples: number;
}

export function clientLayout(rank: number, workers: number, way: Clients, batchSize: number): ClientLayout {
  const { clients } = way;
  const { number: client, ranks } = clientOf(rank, workers, clients);
  const leaders = Array.from({ length: workers }, (_, one) => one).filter(
    (one) => clientOf(one, workers, clients).ranks[0] === one,
  );
  const index = ranks.indexOf(rank);
  const part = { index, count: ranks.length, of: { index: client, count: clients } };
  return { client, clients, ranks, leaders, index, part, stepSamples: stepSamplesOf(way, batchSize) };
}

/**
 * Samples that all workers go through in a step: `batchSize` are behind one update, and without
 * lock step each client makes one.
 */
export function stepSamplesOf({ consistency, clients }: Clients, batchSize: number): number {
  return consistency.kind === 'synchronous' ? batchSize : batchSize * clients;
}

/** The same of whoever trains. */
export function samplesOfStep(on: ResolvedOn, batchSize: number): number {
  return on.kind === 'workers' && on.way.kind === 'clients' ? stepSamplesOf(on.way, batchSize) : batchSize;
}

/** Samples of the client's part of a batch of so many. */
export function samplesOfClient({ client, clients }: ClientLayout, batchSize: number): number {
  return batchPart(new Uint32Array(batchSize), client, clients).length;
}

/** The most samples that one worker of a client can have at once. */
export function mostSamples(workers: number, way: Clients, batchSize: number): number {
  const perClient = Math.ceil(stepSamplesOf(way, batchSize) / way.clients);
  return Math.ceil(perClient / Math.floor(workers / way.clients));
}
