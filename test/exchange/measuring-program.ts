/**
 * A worker of the tests of measuring: measures what a run measures, several times, and says after each what memory is taken. Not a
 * test itself, and no judge: measuring.test.ts is.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { TributaryError } from '../../src/base/index.ts';
import { CommunicationThread } from '../../src/communication/index.ts';
import { OnnxCompute } from '../../src/compute/index.ts';
import { measureGather, measureMessages, measureServers, startRunServers } from '../../src/exchange/index.ts';
import { gradients } from '../../src/graph/index.ts';
import type { TransportChoice } from '../../src/launcher/index.ts';
import type { TrialStore } from '../../src/exchange/run-servers.ts';
import { defaultSegmentDirectory, SharedSpace } from '../../src/memory/index.ts';
import { decodeHeader } from '../../src/memory/segment-header.ts';
import { tryExchange } from '../../src/runner/exchange-trial.ts';
import { Replica } from '../../src/runtime/index.ts';
import { say, settings } from '../collectives/rank-program-start.ts';
import { circlesModel } from '../runner/circles.ts';
import { segmentFiles } from '../support/segment-files.ts';

const { scheduler, secret, transport } = settings;
const ROUNDS = 3;
const FORGOTTEN_MS = 20_000;
const space = SharedSpace.create({ maxBytes: 512 * 2 ** 20 });
const thread = await CommunicationThread.start({
  ...{ scheduler, secret, space, measure: false, transport: transport as TransportChoice },
  ...(settings['onHostsOfTheirOwn'] === true ? { host: `host-${process.pid}` } : {}),
});
const { rank, size } = thread.world;
const optimizer = { name: 'adam', lr: 0.01 } as const;
const model = circlesModel();
const groups = [gradients(model.loss).map(({ parameter }) => parameter.name)];
const compute = new OnnxCompute();
const replica = new Replica(model, {
  ...{ compute, space, optimizer, maxBatch: 8, groups, workers: size },
  segmentName: `measuring-${process.pid}`,
});
const table = { rowLength: 64, mostRows: settings['mostRows'] as number };

/** Of this process's space, what peers have lent it included. */
function takenBytes(): number {
  try {
    space.allocate(space.capacityBytes).close();
  } catch (error) {
    if (error instanceof TributaryError) return error.facts['usedBytes'] as number;
    throw error;
  }
  return 0;
}

/** Segments with parameters of servers; the server is in the process of the first worker. */
function serverValues(): number {
  return segmentFiles().filter((name) => name.includes('-values-') && isOwn(name)).length;
}

function isOwn(name: string): boolean {
  try {
    const content = readFileSync(join(defaultSegmentDirectory(), name));
    const header = decodeHeader(content, content.length);
    return typeof header !== 'string' && header.owner.pid === process.pid;
  } catch {
    // Those of others come and go.
    return false;
  }
}

for (let round = 0; round < ROUNDS; round++) {
  await measureMessages(thread, settings['messageBytes'] as number);
  await measureGather(thread, replica.kernels, table);
  await tryExchange(thread, replica, [0, 1, 2, 3], 0);
  // What peers say before they come here has been heard then.
  await thread.barrier();
  const regions = segmentFiles().filter((name) => name.includes(`region-${process.pid}-`));
  say('measured', { rank, round, takenBytes: takenBytes(), regions: regions.length });
}

const servers = await startRunServers({ thread, secret, optimizer, rows: 'exact' });
say('store', { rank, servers: servers.servers, sharesMemory: servers.store.sharesMemory });
const takenBefore = takenBytes();
let valuesMeanwhile = 0;
const openTrial = async (): Promise<TrialStore> => {
  const { store, close } = await servers.openTrial!();
  const look = (): Promise<void> => {
    valuesMeanwhile = serverValues();
    return close();
  };
  return { store, close: look };
};
const costs = await measureServers({ thread, openTrial, table, localAggregation: true });
const deadlineMs = performance.now() + FORGOTTEN_MS;
while (serverValues() > 0 && performance.now() < deadlineMs) await pause(20);
const lengths = [costs.dense.length, costs.rows.length];
const values = [valuesMeanwhile, serverValues()];
const { pushShare } = costs;
say('servers', { rank, lengths, values, pushShare, grownBytes: takenBytes() - takenBefore });

const freed = thread.allocate('float32', 4);
await thread.free(freed);
const again = await thread.free(freed).catch((error: unknown) => error);
say('again', { rank, ...(again instanceof TributaryError ? { name: again.name, code: again.code } : {}) });
await servers.close();
replica.close();
compute.close();
const kept = thread.allocate('float32', 4);
await thread.close();
await thread.free(kept);
say('closed', { rank });
process.exit(0);
