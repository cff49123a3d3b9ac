/**
 * Makes endpoints for scenarios, and runs a scenario with all ranks as objects of one process, interleaved on its event
 * loop. The latter is for transports whose endpoints can be made side by side; not for MPI, where a process is one
 * rank. Invariant: whatever happens, every transport is closed and every segment that an endpoint allocated is gone
 * afterwards.
 */
import type { DType, Region, Segment, SharedSpace } from '../../src/memory/index.ts';
import type { MemberAddress, Transport } from '../../src/transport/index.ts';
import { recordEvents } from './conformance.ts';
import type { Endpoint, Scenario } from './conformance.ts';

const DEADLINE_MS = 20_000;

export interface RankSetup {
  readonly transport: Transport;
  readonly space: SharedSpace;
  /** A segment for regions of the endpoint, closed at the end of the scenario. */
  segment(byteLength: number): Segment;
}

/** `makeRank` makes the unconnected transport of each rank; `seed` is printed when the scenario fails. */
export async function runRanks(
  scenario: Scenario,
  size: number,
  makeRank: (rank: number) => RankSetup | Promise<RankSetup>,
  seed: number = Math.floor(Math.random() * 2 ** 31),
): Promise<void> {
  const setups: RankSetup[] = [];
  const endpoints: OpenEndpoint[] = [];
  let failed = false;
  try {
    for (let rank = 0; rank < size; rank++) setups.push(await makeRank(rank));
    const members = setups.map(({ transport }, member): MemberAddress => ({
      member,
      title: `rank ${member} of process ${process.pid}`,
      host: 'here',
      address: JSON.parse(JSON.stringify(transport.address)) as Record<string, unknown>,
    }));
    for (const [rank, setup] of setups.entries()) {
      endpoints.push(openEndpoint(setup, { rank, size, seed }, () => failed));
    }
    await Promise.all(
      setups.map(({ transport }, rank) =>
        transport.connect(
          rank,
          members.filter(({ member }) => member !== rank),
          { connectTimeoutMs: DEADLINE_MS },
        ),
      ),
    );
    // A rank that has finished keeps polling, since others may still wait for what it sent.
    let running = size;
    await Promise.all(
      endpoints.map(async (endpoint) => {
        try {
          await scenario.run(endpoint);
        } catch (error) {
          failed = true;
          throw error;
        }
        running--;
        await endpoint.until(() => running === 0);
      }),
    );
  } catch (error) {
    console.error(`'${scenario.name}' failed with ${size} ranks and seed ${seed}`);
    throw error;
  } finally {
    await Promise.all(setups.map(({ transport }) => transport.close()));
    for (const endpoint of endpoints) endpoint.close();
  }
}

export interface OpenEndpoint extends Endpoint {
  /** Closes the segments of what was allocated; the endpoint can allocate again. */
  close(): void;
}

/** The endpoint of one rank, which listens to its transport; `hasFailed` ends waits that would be in vain. */
export function openEndpoint(
  setup: RankSetup,
  place: { readonly rank: number; readonly size: number; readonly seed: number },
  hasFailed: () => boolean = () => false,
): OpenEndpoint {
  const { transport, space } = setup;
  const { told, events } = recordEvents();
  transport.listen(events);
  const arena = new Arena(setup);
  const until = async (condition: () => boolean): Promise<void> => {
    const deadline = performance.now() + DEADLINE_MS;
    while (!condition()) {
      if (hasFailed()) throw new Error(`rank ${place.rank} stops, because another rank failed`);
      if (performance.now() > deadline) {
        const lost = told.lost.map(({ error }) => error.message).join('; ') || 'nobody';
        throw new Error(`rank ${place.rank} waited ${DEADLINE_MS} ms in vain; told as lost: ${lost}`);
      }
      if (!transport.poll()) transport.block(0);
      await new Promise(setImmediate);
    }
  };
  const allocate = <T extends DType>(dtype: T, length: number): Region<T> => arena.allocate(dtype, length);
  return { ...place, transport, space, told, until, allocate, close: () => arena.close() };
}

/** Regions one after the other in segments of a few megabytes, since every segment takes whole pages. */
class Arena {
  readonly #setup: RankSetup;
  readonly #segments: Segment[] = [];
  #left = 0;

  constructor(setup: RankSetup) {
    this.#setup = setup;
  }

  allocate<T extends DType>(dtype: T, length: number): Region<T> {
    const bytes = length * 8 + 64;
    if (bytes > this.#left) {
      const byteLength = Math.max(bytes, 4 * 2 ** 20);
      this.#segments.push(this.#setup.segment(byteLength));
      this.#left = byteLength;
    }
    this.#left -= bytes;
    return this.#segments.at(-1)!.allocate(dtype, length);
  }

  close(): void {
    for (const segment of this.#segments.splice(0)) segment.close();
    this.#left = 0;
  }
}
