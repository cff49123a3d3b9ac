/**
 * The cluster in which workers of `bench exchange` meet that form clients (MXNET-MPI, section 4). Not the exchange, which is
 * that of the client store. Invariant: where every worker is its own client there is no cluster, and nothing of it in the
 * figures.
 */
import type { Cluster } from '../../cluster/index.ts';
import { joinCluster } from '../../launcher/index.ts';
import { readMeeting } from '../allreduce/meeting.ts';
import type { OurRun } from './our-run.ts';

/** Undefined where every worker is its own client. */
export async function meetWorkers(run: OurRun, worker: number, folder: string): Promise<Cluster | undefined> {
  if (run.clients === run.workers) return undefined;
  const { transport } = run;
  // What is measured on joining is for allreduce, which no client does.
  return joinCluster({ ...readMeeting(folder), transport, wantedRank: worker, measure: false });
}
