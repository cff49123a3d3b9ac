/**
 * One rank of ours in `bench allreduce`: a process that joins the cluster of the run, then sums vectors when its turn
 * comes. The program that `group-command.ts` starts; nothing imports it. Invariant: only the collectives are timed, not
 * the filling of vectors nor the checking of sums.
 */
import type { Cluster } from '../../cluster/index.ts';
import { allReduce, barrier, chooseAlgorithm } from '../../collectives/index.ts';
import type { AllReduceAlgorithm } from '../../collectives/index.ts';
import { joinCluster, joinMpiJob } from '../../launcher/index.ts';
import type { Region } from '../../memory/index.ts';
import { serveTurns } from './control.ts';
import type { Turn, TurnResult } from './control.ts';
import { parseAssignment } from './group-command.ts';
import type { RankAssignment } from './group-command.ts';
import { readMeeting } from './meeting.ts';
import { fillVector, isSummed } from './test-vector.ts';

const assignment = parseAssignment(process.argv[2]);
const cluster = await enter(assignment);
let room = cluster.allocate('float32', 0);
await serveTurns(assignment.control, cluster.world.rank, (turn) => Promise.resolve(take(turn)));
await cluster.close();

async function enter({ transport, rank, folder }: RankAssignment): Promise<Cluster> {
  if (transport === 'mpi') return joinMpiJob();
  const wantedRank = rank ?? undefined;
  return joinCluster({ ...readMeeting(folder), transport, wantedRank });
}

function take(turn: Turn): TurnResult {
  const { bytes, iterations, burst } = turn;
  const { world } = cluster;
  const vector = vectorOf(bytes);
  const algorithm =
    turn.algorithm === 'auto' ? chooseAlgorithm(world, bytes) : (turn.algorithm as AllReduceAlgorithm);
  let micros = 0;
  let last = 0;
  for (let left = iterations; left > 0; left -= last) {
    last = Math.min(burst, left);
    fillVector(vector.view, world.rank);
    barrier(world).wait();
    const start = performance.now();
    for (let i = 0; i < last; i++) allReduce(world, vector, { algorithm }).wait();
    micros += (performance.now() - start) * 1000;
  }
  return { micros: micros / iterations, ok: isSummed(vector.view, world.size, last), algorithm };
}

/** The same memory for all turns, as long as it suffices. */
function vectorOf(bytes: number): Region<'float32'> {
  if (room.byteLength < bytes) room = cluster.allocate('float32', bytes / 4);
  return room.slice(0, bytes / 4);
}
