/**
 * One thread of `measureMemoryBandwidth`, started by `memory-bound.ts`, never imported: updates its part of the vector in
 * every round, together with the others. Invariants: rounds begin when all threads are there; only the kernel is timed,
 * by the clock that all threads share.
 */
import { workerData } from 'node:worker_threads';
import { Kernels } from '../../kernels/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import type { Region, SegmentRange } from '../../memory/index.ts';
import type { MemoryThreadData } from './memory-bound.ts';
import { meet } from './thread-barrier.ts';

const data = workerData as MemoryThreadData;
const { thread, threads, rounds, timeoutMs, barrier, times } = data;
const space = SharedSpace.fromMemory(data.memory);
const kernels = Kernels.create(space);
const target = part(data.target);
const source = part(data.source);
kernels.fill(source, 1);
for (let round = 0; round < rounds; round++) {
  meet(barrier, threads, round, timeoutMs);
  const start = process.hrtime.bigint();
  kernels.axpy(target, 1, source);
  const end = process.hrtime.bigint();
  times.set([start, end], 2 * (round * threads + thread));
}
if (target.view.some((value) => value !== rounds)) {
  throw new Error(`elements ${data.start} to ${data.start + data.length} are not all ${rounds}`);
}

function part(range: SegmentRange): Region<'float32'> {
  return space.adoptSegment(range).region('float32', 4 * data.start, data.length);
}
