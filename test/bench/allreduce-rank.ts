/**
 * A rank of ours for the tests of `bench allreduce`, as the coordinator starts it under mpirun: sums by Open MPI's own
 * allreduce on our MPI transport. Not the product's rank program.
 */
import { fillVector, isSummed, parseAssignment, serveTurns } from '../../src/bench/allreduce/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { createMpiTransport } from '../../src/transport/mpi/index.ts';

const { control } = parseAssignment(process.argv[2]);
const space = SharedSpace.create();
const transport = createMpiTransport({ space });
const { member, size, native } = transport;
const members = Array.from({ length: size }, (_, rank) => rank);
const everyone = space.allocate(64).allocate('int32', 1);
const segment = space.allocate(128 * 2 ** 20);

await serveTurns(control, member, ({ bytes, iterations, burst }) => {
  const region = segment.region('float32', 0, bytes / 4);
  let milliseconds = 0;
  let count = 0;
  for (let left = iterations; left > 0; left -= count) {
    count = Math.min(left, burst);
    fillVector(region.view, member);
    native.allReduce(members, everyone, 'max');
    const start = performance.now();
    for (let i = 0; i < count; i++) native.allReduce(members, region, 'sum');
    milliseconds += performance.now() - start;
  }
  const ok = isSummed(region.view, size, count);
  return Promise.resolve({ micros: (milliseconds * 1e3) / iterations, ok, algorithm: 'native' });
});
await transport.close();
