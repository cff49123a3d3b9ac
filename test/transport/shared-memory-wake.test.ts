import { describe, expect, it } from 'vitest';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { Arrivals } from '../../src/transport/shared-memory/arrivals.ts';
import { Control } from '../../src/transport/shared-memory/control.ts';
import {
  ControlWord,
  EntryKind,
  MIN_RING_BYTES,
  RING_DATA_BYTES,
} from '../../src/transport/shared-memory/layout.ts';
import { copyBytesIn } from '../../src/transport/shared-memory/memory-copy.ts';
import { textEntry } from '../../src/transport/shared-memory/outgoing.ts';
import { loopLink } from './shared-memory-pair.ts';

/** Longer than a test may take: only a ring of the doorbell ends such a sleep in time. */
const FOR_EVER_MS = 2 ** 30;

describe.skipIf(!hasSharedMemory())('a sleeper in shared memory', () => {
  const space = SharedSpace.create({ maxBytes: 2 ** 21 });
  const copyBytes = copyBytesIn(space);
  const notice = (bytes: number) => textEntry(1, EntryKind.NOTICE, Buffer.alloc(bytes));

  function setUp() {
    const segment = space.allocate(4096);
    const control = new Control(segment);
    const ring = space.allocate(RING_DATA_BYTES + MIN_RING_BYTES);
    const words = segment.region('int32', 0, 64).view;
    return { control, words, link: loopLink(ring, control, copyBytes) };
  }

  it('is woken by an entry that comes after it looked', () => {
    const { control, link, words } = setUp();
    control.sleep(() => {
      link.push(notice(10));
      return false;
    }, FOR_EVER_MS);
    expect(words[ControlWord.SLEEPING]).toBe(0);
  });

  it('does not sleep when there is work, and costs others no wake while awake', () => {
    const { control, link, words } = setUp();
    control.sleep(() => true, FOR_EVER_MS);
    link.push(notice(10));
    expect(words[ControlWord.DOORBELL]).toBe(0);
  });

  it('is woken when there is room again for what it could not write', () => {
    const { control, link } = setUp();
    const arrivals = new Arrivals(space, copyBytes, () => undefined);
    while (!link.hasQueue) link.push(notice(30_000));
    expect(link.canFlush).toBe(false);
    control.sleep(() => {
      expect(arrivals.drain(link)).toBeUndefined();
      return false;
    }, FOR_EVER_MS);
    expect(link.canFlush).toBe(true);
    expect(link.flush()).toBe(true);
    expect(link.drained).toBe(true);
  });

  it('is woken by what leaves the queue', () => {
    const { control, link } = setUp();
    const arrivals = new Arrivals(space, copyBytes, () => undefined);
    while (!link.hasQueue) link.push(notice(30_000));
    arrivals.drain(link);
    control.sleep(() => !link.flush(), FOR_EVER_MS);
    expect(link.reader.hasEntries).toBe(true);
  });
});
