/** Workers that are started again: what a tenant keeps of their earlier processes. */
import { afterEach, describe, expect, it } from 'vitest';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { ParameterServer, segmentPrefix } from '../../src/server/index.ts';
import { OneThreadHost } from './one-thread-host.ts';
import { bytesOf, openRequest, pushRequest, RawWorker, SETTINGS } from './raw-worker.ts';

const ACCESS = { namespace: 'a', nonce: 'a'.padEnd(64, '0') };
const LENGTH = 2 ** 16;
const RESTARTS = 20;

describe.skipIf(!hasSharedMemory())('a worker that is started again', () => {
  const closing: { close(): unknown }[] = [];
  let server: ParameterServer;

  afterEach(async () => {
    for (const one of closing.splice(0).reverse()) await one.close();
  });

  async function start(cores: number): Promise<void> {
    server = await ParameterServer.start({ cores }, new OneThreadHost());
    closing.push(server);
    server.createService(ACCESS);
  }

  /** One process of the worker: a connection to each core. */
  async function started(worker: number, process: number): Promise<RawWorker[]> {
    const identity = { worker, incarnation: String(process).padStart(64, '0'), settings: SETTINGS };
    const first = await RawWorker.dial(server);
    closing.push(first);
    const welcome = await first.introduce(ACCESS, identity);
    const [, ...others] = welcome === 'closed' ? [] : (welcome.header.ports as number[]);
    const more = await Promise.all(others.map((port) => RawWorker.admitted({ port }, ACCESS, identity)));
    closing.push(...more);
    return [first, ...more];
  }

  it.each([
    ['while its earlier process is connected', false],
    ['after its earlier process has ended', true],
  ])('gets the memory of its earlier process, %s', async (_when, endsFirst) => {
    await start(2);
    const space = SharedSpace.create({ maxBytes: 2 ** 26 });
    const bytes: number[] = [];
    for (let process = 0; process <= RESTARTS; process++) {
      const cores = await started(0, process);
      const name = `${segmentPrefix(ACCESS.namespace, ACCESS.nonce)}gradients-${process}`;
      const segment = space.createSegment(name, 4 * LENGTH);
      for (const core of cores) {
        await core.done(openRequest('w', LENGTH));
        await core.done({ op: 'values', batch: 0 }, bytesOf(new Float32Array(LENGTH)));
        await core.done({ op: 'map', segment: name });
        await core.done({ op: 'list', list: 0, entries: [{ piece: 0, isInPlace: false }] });
        await core.done(pushRequest(1), bytesOf(new Float32Array(LENGTH).fill(1)));
      }
      bytes.push(server.services[0]!.bytes);
      if (endsFirst) for (const core of cores) await core.close();
      segment.close();
    }
    expect(bytes).toEqual(bytes.map(() => bytes[0]));
  });
});
