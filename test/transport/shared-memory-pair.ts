/**
 * Two or more shared-memory transports side by side in one process, for tests that look closer than the conformance
 * scenarios. Not a harness for scenarios. Invariant: `close` leaves nothing of them in the folder.
 */
import { currentProcess, SharedSpace } from '../../src/memory/index.ts';
import type { Segment } from '../../src/memory/index.ts';
import type { Envelope, MemberAddress } from '../../src/transport/index.ts';
import type { Control } from '../../src/transport/shared-memory/control.ts';
import { createSharedMemoryTransport } from '../../src/transport/shared-memory/index.ts';
import type { SharedMemoryOptions, SharedMemoryTransport } from '../../src/transport/shared-memory/index.ts';
import { Link } from '../../src/transport/shared-memory/link.ts';
import type { CopyBytes } from '../../src/transport/shared-memory/memory-copy.ts';
import { RingReader, RingWriter } from '../../src/transport/shared-memory/ring.ts';
import { Staging } from '../../src/transport/shared-memory/staging.ts';
import { recordEvents, scenarios } from './conformance.ts';
import type { Told } from './conformance.ts';
import { openEndpoint } from './ranks.ts';

export interface Side {
  readonly member: number;
  readonly space: SharedSpace;
  readonly transport: SharedMemoryTransport;
  readonly told: Told;
  /** A named segment of 1 MiB. */
  readonly segment: Segment;
}

export function envelope(place: Partial<Envelope> = {}): Envelope {
  return { group: 1, tag: 2, sequence: 3, step: 4, signature: 5, weight: 6, ...place };
}

export function addressOf({ transport, member }: Pick<Side, 'transport' | 'member'>): MemberAddress {
  return { member, title: `side ${member}`, host: 'here', address: transport.address };
}

export function makeSide(
  member: number,
  directory: string,
  options: Partial<SharedMemoryOptions> = {},
  spaceBytes = 64 * 2 ** 20,
): Side {
  const space = SharedSpace.create({ maxBytes: spaceBytes });
  const transport = createSharedMemoryTransport({ space, directory, session: 'side', ...options });
  const { told, events } = recordEvents();
  transport.listen(events);
  const segment = space.createSegment(`data-${member}-${process.pid}`, 2 ** 20, { directory });
  return { member, space, transport, told, segment };
}

export async function connectedSides(
  count: number,
  directory: string,
  options: Partial<SharedMemoryOptions> = {},
): Promise<Side[]> {
  const sides = Array.from({ length: count }, (_, member) => makeSide(member, directory, options));
  const addresses = sides.map(addressOf);
  await Promise.all(sides.map(({ transport, member }) => transport.connect(member, addresses)));
  return sides;
}

export async function closeSides(sides: readonly Side[]): Promise<void> {
  for (const { transport, segment } of sides) {
    await transport.close();
    segment.close();
  }
}

/** Runs every scenario for two ranks, one after the other on the same transport, as the rank of this process. */
export async function runAsRank(
  rank: number,
  seed: number,
  directory: string,
  { space, transport }: Pick<Side, 'space' | 'transport'>,
): Promise<void> {
  let segments = 0;
  const segment = (byteLength: number): Segment =>
    space.createSegment(`rank-${process.pid}-${segments++}`, byteLength, { directory });
  const endpoint = openEndpoint({ transport, space, segment }, { rank, size: 2, seed });
  for (const scenario of scenarios) {
    if (!scenario.sizes.includes(2)) continue;
    try {
      await scenario.run(endpoint);
    } catch (error) {
      throw new Error(`'${scenario.name}' failed with seed ${seed}`, { cause: error });
    } finally {
      endpoint.close();
    }
  }
}

/** Polls all sides until nothing moves any more. */
export function settle(sides: readonly Side[]): void {
  while (sides.map(({ transport }) => transport.poll()).includes(true));
}

/** A link whose two rings are one private segment, so that what is written comes back. */
export function loopLink(ring: Segment, control: Control, copyBytes: CopyBytes): Link {
  const { space } = ring;
  const parts = {
    member: 1,
    title: 'itself',
    identity: currentProcess(),
    control,
    writer: new RingWriter(ring),
    reader: new RingReader(ring),
  };
  const staging = new Staging(() => space.allocate(65_536));
  return new Link(parts, { space, directory: '/nowhere', copyBytes, staging });
}
