/**
 * Workers of `bench exchange` that form clients (MXNET-MPI, section 4): which ranks a client has, and the cluster in which they
 * meet. Not the exchange, which is that of the client store. Invariants: clients are runs of ranks, as even as can be; where every
 * worker is its own client there is no cluster, and nothing of it in the figures.
 */
import type { Cluster } from '../../cluster/index.ts';
import { joinCluster } from '../../launcher/index.ts';
import { readMeeting } from '../allreduce/meeting.ts';
import type { OurRun } from './our-run.ts';

export interface Client {
  /** As servers count it, from 0. */
  readonly number: number;
  /** Its workers; the first of them faces the servers. */
  readonly ranks: readonly number[];
}

export function clientOf(worker: number, workers: number, clients: number): Client {
  const firstOf = (client: number): number => Math.floor((client * workers) / clients);
  let number = 0;
  while (worker >= firstOf(number + 1)) number++;
  const size = firstOf(number + 1) - firstOf(number);
  return { number, ranks: Array.from({ length: size }, (_, i) => firstOf(number) + i) };
}

/** Undefined where every worker is its own client. */
export async function meetWorkers(run: OurRun, worker: number, folder: string): Promise<Cluster | undefined> {
  if (run.clients === run.workers) return undefined;
  const { transport } = run;
  // What is measured on joining is for allreduce, which no client does.
  return joinCluster({ ...readMeeting(folder), transport, wantedRank: worker, measure: false });
}
