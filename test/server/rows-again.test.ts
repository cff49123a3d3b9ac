/** A push of rows whose answer was lost is sent again: it changes nothing, and is answered by the rows all the same. */
import { afterEach, expect, it } from 'vitest';
import { Servers } from '../kvstore/servers.ts';
import { bytesOf, floatsOf, RawWorker } from './raw-worker.ts';

let ground: Servers | undefined;
let worker: RawWorker | undefined;
afterEach(async () => {
  await worker?.close();
  await ground?.close();
});

it('a repeated push of rows is answered by the rows as they are', async () => {
  ground = await Servers.start(1);
  worker = await RawWorker.admitted(ground.servers[0]!, ground.createService());
  await worker.done({
    ...{ op: 'open', batch: 0, firstPiece: 0, awaitsValues: false },
    keys: [{ key: 't', length: 8, rowLength: 2 }],
    pieces: [{ key: 0, start: 0, length: 8, ranges: [[0, 8]] }],
  });
  await worker.done({ op: 'values', batch: 0 }, bytesOf(new Float32Array(8).fill(1)));
  const push = { op: 'push-rows', piece: 0, count: 2, step: 1, samples: 1, isSkipped: false, pulls: true };
  const body = Buffer.concat([bytesOf(Int32Array.of(3, 0)), bytesOf(Float32Array.of(5, 6, 7, 8))]);
  for (const request of [push, push]) {
    const { header, body: rows } = await worker.done(request, body);
    expect(header.results).toEqual([[1, 0]]);
    expect([...floatsOf(rows)]).toEqual([6, 7, 8, 9]);
  }
  // One that is left out counts, and is answered by what is there.
  const skipped = await worker.done({ ...push, step: 2, isSkipped: true }, body);
  expect(skipped.header.results).toEqual([[2, 0]]);
  expect([...floatsOf(skipped.body)]).toEqual([6, 7, 8, 9]);
});
