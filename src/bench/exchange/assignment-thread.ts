/**
 * One thread of `measureAssignments`, started by `assignment.ts`, never imported. Invariants: an exchange begins when all threads
 * have ended the one before; in worker by core a chunk is only touched by who holds its lock; at the end the weights of
 * both assignments are those that are known, bit by bit.
 */
import { workerData } from 'node:worker_threads';
import { createOptimizer, Kernels } from '../../kernels/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import type { Region, SegmentRange } from '../../memory/index.ts';
import type { AssignmentThreadData } from './assignment.ts';
import { expectedWeights, fillGradient, hasWeights, LEARNING_RATE, MOMENTUM } from './known-exchange.ts';
import { meet } from './thread-barrier.ts';

type Vector = Region<'float32'>;
/** Of a lock. Whoever finds it taken says so, and the holder wakes one that waits. */
const [FREE, TAKEN, AWAITED] = [0, 1, 2];
const SPINS = 2000;

const data = workerData as AssignmentThreadData;
const { thread, threads, rounds, iterations, barrier, timeoutMs, times, locks, counts } = data;
const space = SharedSpace.fromMemory(data.memory);
const kernels = Kernels.create(space);
const optimizer = createOptimizer(kernels, { name: 'sgd', lr: LEARNING_RATE, momentum: MOMENTUM });
const gradients = data.gradients.map(vectorOf);
const gradientChunks = gradients.map(chunksOf);
const sums = chunksOf(vectorOf(data.sums));
const states = data.states.map(([weights, momentum]) => ({
  weights: vectorOf(weights),
  chunks: chunksOf(vectorOf(weights)),
  momentum: chunksOf(vectorOf(momentum)),
}));
/** What a thread adds up by itself. */
const own = space.allocate(4 * data.chunkElements).allocate('float32', data.chunkElements);
const ownSums = sums.map(({ length }) => own.slice(0, length));
const piecesOfAll = sums.map((_, chunk) => gradientChunks.map((chunks) => chunks[chunk]!));
let meetings = 0;

fillGradient(gradients[thread]!.view, thread);
for (let round = 0; round < rounds; round++) {
  [keyByCore, workerByCore].forEach((exchange, assignment) => {
    meet(barrier, threads, meetings++, timeoutMs);
    const start = performance.now();
    for (let i = 0; i < iterations; i++) {
      exchange(round * iterations + i + 1);
      meet(barrier, threads, meetings++, timeoutMs);
    }
    times[(round * 2 + assignment) * threads + thread] = performance.now() - start;
  });
}
const expected = expectedWeights(threads, rounds * iterations);
if (!states.every(({ weights }) => hasWeights(weights.view, expected)))
  throw new Error(`the weights after ${rounds * iterations} exchanges are wrong`);

function keyByCore(t: number): void {
  const { chunks, momentum } = states[0]!;
  for (let chunk = thread; chunk < chunks.length; chunk += threads) {
    kernels.sum(ownSums[chunk]!, piecesOfAll[chunk]!);
    update(t, chunks[chunk]!, ownSums[chunk]!, momentum[chunk]!);
  }
}

function workerByCore(t: number): void {
  const { chunks, momentum } = states[1]!;
  // Each begins elsewhere, so that they seldom want the same chunk.
  const first = Math.floor((chunks.length * thread) / threads);
  for (let i = 0; i < chunks.length; i++) {
    const chunk = (first + i) % chunks.length;
    const [sum, piece] = [sums[chunk]!, gradientChunks[thread]![chunk]!];
    lock(chunk);
    if (counts[chunk] === 0) kernels.copy(sum, piece);
    else kernels.sum(sum, [sum, piece]);
    counts[chunk] = (counts[chunk]! + 1) % threads;
    if (counts[chunk] === 0) update(t, chunks[chunk]!, sum, momentum[chunk]!);
    unlock(chunk);
  }
}

function update(t: number, parameter: Vector, gradient: Vector, momentum: Vector): void {
  optimizer.update({ t, parameter, gradient, slots: { momentum_buffer: momentum } });
}

function lock(chunk: number): void {
  for (let spin = 0; spin < SPINS; spin++)
    if (Atomics.compareExchange(locks, chunk, FREE, TAKEN) === FREE) return;
  while (Atomics.exchange(locks, chunk, AWAITED) !== FREE) {
    if (Atomics.wait(locks, chunk, AWAITED, timeoutMs) === 'timed-out')
      throw new Error(`it waited ${timeoutMs} ms for chunk ${chunk}`);
  }
}

function unlock(chunk: number): void {
  if (Atomics.exchange(locks, chunk, FREE) === AWAITED) Atomics.notify(locks, chunk, 1);
}

function vectorOf(range: SegmentRange): Vector {
  return space.adoptSegment(range).region('float32', 0, data.elements);
}

function chunksOf(vector: Vector): Vector[] {
  const { elements, chunkElements } = data;
  return Array.from({ length: Math.ceil(elements / chunkElements) }, (_, chunk) => {
    const start = chunk * chunkElements;
    return vector.slice(start, Math.min(chunkElements, elements - start));
  });
}
