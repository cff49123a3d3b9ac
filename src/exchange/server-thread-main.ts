/**
 * The entry of the thread that a run's parameter server lives in: starts it, says where it listens, and ends it, or one of its services, when told. Run by
 * `server-thread.ts`, never imported. Invariant: the starter hears of every way in which starting can go.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { pack } from '../base/index.ts';
import { ParameterServer } from '../server/index.ts';
import type { ServerNews, ServerOrder, ServerThreadOptions } from './server-thread.ts';

const { address, cores, services, tls } = workerData as ServerThreadOptions;
const tell = (news: ServerNews): void => parentPort!.postMessage(news);
try {
  const server = await ParameterServer.start({ address, cores, tls });
  // They belong to one training: whatever the space has is theirs, and in lock step no step is made
  // without a worker.
  const service = { maxBytes: server.capacityBytes, lostWorkers: 'rewind' } as const;
  for (const access of services) server.createService({ ...access, ...service });
  parentPort!.on('message', (order: ServerOrder) => {
    if (order === 'close') void server.close().finally(() => tell({ kind: 'closed' }));
    else server.endService(order.endService);
  });
  tell({ kind: 'listening', address: `${server.address}:${server.port}` });
} catch (error) {
  tell({ kind: 'failed', error: pack(error) });
}
