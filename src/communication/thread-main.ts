/**
 * The entry of the communication thread: joins the cluster and serves commands until the caller closes it. Run as a
 * worker by `thread-link.ts`, never imported. Invariant: the caller hears of every way in which it can end.
 */
import { workerData } from 'node:worker_threads';
import { pack } from '../base/index.ts';
import { joinCluster, joinMpiJob } from '../launcher/index.ts';
import type { Cluster } from '../cluster/index.ts';
import { SharedSpace } from '../memory/index.ts';
import type { StallReport } from '../progress/index.ts';
import { CommandServer } from './command-server.ts';
import { viewOf } from './messages.ts';
import type { ThreadData, ThreadReport } from './messages.ts';
import { isMpi } from './options.ts';
import { SharedWords } from './shared-words.ts';

const { port, words: buffer, memory, join } = workerData as ThreadData;
const words = new SharedWords(buffer);
const post = (report: ThreadReport): void => port.postMessage(report);

async function enter(): Promise<Cluster> {
  const space = SharedSpace.fromMemory(memory);
  const onStall = (event: StallReport): void => post({ kind: 'event', name: 'stalled', event });
  if (isMpi(join)) return joinMpiJob({ ...join, space, onStall });
  const leaving = new AbortController();
  // Until it has joined, the only thing the caller can say is that it gives up.
  const giveUp = (): void => leaving.abort();
  port.once('message', giveUp);
  try {
    const log = (line: string): void => post({ kind: 'log', line });
    return await joinCluster({ ...join, space, signal: leaving.signal, log, onStall });
  } finally {
    port.off('message', giveUp);
  }
}

let cluster: Cluster | undefined;
let server: CommandServer | undefined;
try {
  words.enrol();
  cluster = await enter();
  server = new CommandServer(cluster, port, words);
  const { transport, world, progress } = cluster;
  if (!isMpi(join) && join.spinWhileCallerWaits) progress.mayKeepLooking = () => words.isCallerWaiting;
  const inPlace = transport.inPlace !== undefined;
  post({ kind: 'joined', world: viewOf(world), transport: transport.kind, inPlace });
  await server.serve();
} catch (error) {
  post({ kind: 'died', error: pack(error) });
  server?.abandon();
  await cluster?.abort(error as Error);
}
port.close();
