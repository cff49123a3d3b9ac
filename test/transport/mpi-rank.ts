/**
 * One rank of the tests of the MPI transport, started by mpirun: runs the scenarios its first argument names, with the
 * seed of the second, and prints one JSON line for each, `{ rank, scenario, error? }`. Not a test itself.
 * Invariant: all ranks run the same scenarios in the same order and close their transports together.
 */
import { SharedSpace } from '../../src/memory/index.ts';
import type { DType, Region, Segment } from '../../src/memory/index.ts';
import { createMpiTransport } from '../../src/transport/mpi/index.ts';
import type { MpiTransport } from '../../src/transport/mpi/index.ts';
import { closingScenario, recordEvents, scenarios } from './conformance.ts';
import type { Endpoint, Scenario } from './conformance.ts';
import { leaveScenarios, withdrawScenarios } from './mpi-leaving.ts';
import { nativeScenarios } from './mpi-native.ts';

const DEADLINE_MS = 20_000;
const ARENA_BYTES = 4 * 2 ** 20;

const [suite, seed] = process.argv.slice(2) as [string, string];
const space = SharedSpace.create({ maxBytes: 2 ** 30 });
const transport = createMpiTransport({ space });
const { member: rank, size } = transport;
const endpoint = makeEndpoint(transport);
const everyone = Array.from({ length: size }, (_, member) => member);
await transport.connect(
  rank,
  everyone
    .filter((member) => member !== rank)
    .map((member) => ({ member, title: `rank ${member}`, host: 'here', address: {} })),
);
let failed = false;
for (const scenario of chosen()) {
  try {
    await scenario.run(endpoint);
    report({ rank, scenario: scenario.name });
  } catch (error) {
    // The others wait for this rank's part in vain and fail by their deadlines; mpirun ends them.
    report({ rank, scenario: scenario.name, error: error instanceof Error ? error.stack : String(error) });
    failed = true;
    break;
  }
}
// Whoever leaves without MPI_Finalize ends the job; the lines are out by then.
if (failed || suite === 'leaving') process.exit(1);
// Nobody closes while others still look at whom they lost.
if (suite !== 'closing') transport.native.allReduce(everyone, endpoint.allocate('int32', 1), 'sum');
await transport.close();
report({ rank, scenario: 'closed' });

function chosen(): readonly Pick<Scenario, 'name' | 'run'>[] {
  if (suite === 'native') return [...nativeScenarios(transport), ...withdrawScenarios];
  if (suite === 'leaving') return leaveScenarios;
  if (suite === 'closing') return [closingScenario];
  return scenarios.filter(({ sizes }) => sizes.includes(size));
}

function report(line: object): void {
  // One write, so that the lines of ranks do not mix.
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function makeEndpoint(own: MpiTransport): Endpoint {
  const { told, events } = recordEvents();
  own.listen(events);
  let segment: Segment | undefined;
  let left = 0;
  return {
    transport: own,
    rank: own.member,
    size: own.size,
    space,
    seed: Number(seed),
    told,
    async until(condition) {
      const deadline = performance.now() + DEADLINE_MS;
      while (!condition()) {
        if (performance.now() > deadline)
          throw new Error(`rank ${own.member} waited ${DEADLINE_MS} ms in vain`);
        if (!own.poll()) own.block(1);
        await Promise.resolve();
      }
    },
    allocate<T extends DType>(dtype: T, length: number): Region<T> {
      const bytes = length * 8 + 64;
      if (!segment || bytes > left) {
        left = Math.max(bytes, ARENA_BYTES);
        segment = space.allocate(left);
      }
      left -= bytes;
      return segment.allocate(dtype, length);
    },
  };
}
