/**
 * Scenarios for Open MPI's own collectives, in the form of the conformance suite. Values are small whole numbers, so that
 * every result is exact whatever order MPI adds in.
 */
import { expect } from 'vitest';
import type { DType } from '../../src/memory/index.ts';
import type { MpiTransport, NativeOperation } from '../../src/transport/mpi/index.ts';
import type { Endpoint, Scenario } from './conformance.ts';

type Fold = (a: number, b: number) => number;
const OPERATIONS: Readonly<Record<NativeOperation, Fold>> = {
  sum: (a, b) => a + b,
  min: (a, b) => Math.min(a, b),
  max: (a, b) => Math.max(a, b),
  product: (a, b) => a * b,
};
const DTYPES = ['float32', 'float64', 'int32'] as const;
const LENGTHS = [0, 1, 7, 1000, 300_000];

const valueOf = (rank: number, index: number): number => ((index * 7 + rank * 3) % 11) - 5;

export function nativeScenarios({ native, member, size }: MpiTransport): Pick<Scenario, 'name' | 'run'>[] {
  const world = Array.from({ length: size }, (_, rank) => rank);
  const check = (
    endpoint: Endpoint,
    members: readonly number[],
    dtype: (typeof DTYPES)[number],
    length: number,
    operation: NativeOperation,
  ): void => {
    const region = endpoint.allocate(dtype, length);
    const view = region.view as Float64Array;
    for (let i = 0; i < length; i++) view[i] = valueOf(member, i);
    native.allReduce(members, region, operation);
    for (let i = 0; i < length; i++) {
      const expected = members.map((rank) => valueOf(rank, i)).reduce(OPERATIONS[operation]);
      // Not -0: int32 has none.
      if (view[i] !== expected && view[i]! + 0 !== expected + 0)
        expect(view[i], `${operation} of ${dtype}, element ${i}`).toBe(expected);
    }
  };
  return [
    {
      name: 'reduces every type, operation and length among all ranks',
      run(endpoint) {
        for (const dtype of DTYPES) {
          for (const operation of Object.keys(OPERATIONS) as NativeOperation[]) {
            for (const length of LENGTHS) check(endpoint, world, dtype, length, operation);
          }
        }
        return Promise.resolve();
      },
    },
    {
      name: 'reduces among some ranks while the others do something else',
      run(endpoint) {
        const groups = [[0, 1], [1, 0], world.slice(1), [...world].reverse(), [member]];
        for (const members of [...groups, ...groups]) {
          if (members.includes(member)) check(endpoint, members, 'float32', 5000, 'sum');
        }
        return Promise.resolve();
      },
    },
    {
      name: 'refuses other types, unknown ranks and lists without this rank',
      run(endpoint) {
        const refused = (members: readonly number[], dtype: DType): void => {
          const call = (): void => native.allReduce(members, endpoint.allocate(dtype, 4), 'sum');
          expect(call).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }) as Error);
        };
        refused(world, 'uint8');
        refused([member, size], 'float32');
        refused([member, member], 'float32');
        refused([(member + 1) % size], 'float32');
        return Promise.resolve();
      },
    },
    {
      name: 'still moves messages',
      async run(endpoint) {
        const { transport, rank } = endpoint;
        const [from, to] = [(rank + size - 1) % size, (rank + 1) % size];
        const envelope = { group: 1, tag: 0, sequence: 0, step: 0, signature: 1, weight: 1 };
        const out = endpoint.allocate('float32', 50_000);
        out.view.fill(rank);
        const receiving = transport.receive(from, envelope, endpoint.allocate('float32', 50_000));
        const sending = transport.send(to, envelope, out);
        await endpoint.until(() => receiving.done && sending.done);
        expect(receiving.region.view.every((value) => value === from)).toBe(true);
      },
    },
  ];
}
