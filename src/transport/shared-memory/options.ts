/**
 * The options of the shared-memory transport and their defaults, checked once. Invariant: what passes here fits
 * together: an inline message is at most a quarter of the ring, so that an entry and its padding always fit.
 */
import { UsageError } from '../../base/index.ts';
import { defaultSegmentDirectory } from '../../memory/index.ts';
import type { SharedSpace } from '../../memory/index.ts';
import { MAX_RING_BYTES, MIN_RING_BYTES } from './layout.ts';

export interface SharedMemoryOptions {
  /** The space whose regions are sent and received. */
  readonly space: SharedSpace;
  /** First part of all segment names: up to 40 letters, digits, dots, underscores or dashes. Default 'session'. */
  readonly session?: string;
  /** Folder of this user on the shared-memory file system, the same for all members; see `SegmentOptions`. Default /dev/shm/tributary-<uid>. */
  readonly directory?: string;
  /** Bytes of the ring to each peer, a power of two from 128 KiB to 64 MiB. Default 128 KiB. */
  readonly ringBytes?: number;
  /** Messages up to so many bytes are copied through the ring, at most a quarter of it. Default 16 KiB. */
  readonly inlineBytes?: number;
  /** Longest wait of `forget` for a peer that writes into a region of the operation, in milliseconds. Default 1000. */
  readonly forgetTimeoutMs?: number;
  /** Longest wait of `close` for peers to take what was sent, in milliseconds. Default 5000. */
  readonly closeTimeoutMs?: number;
}

export type CheckedOptions = Required<SharedMemoryOptions>;

export function checkOptions(options: SharedMemoryOptions): CheckedOptions {
  const ringBytes = options.ringBytes ?? MIN_RING_BYTES;
  const checked: CheckedOptions = {
    space: options.space,
    session: options.session ?? 'session',
    directory: options.directory ?? defaultSegmentDirectory(),
    ringBytes,
    inlineBytes: options.inlineBytes ?? 16 * 1024,
    forgetTimeoutMs: options.forgetTimeoutMs ?? 1000,
    closeTimeoutMs: options.closeTimeoutMs ?? 5000,
  };
  const faults = [
    /^[A-Za-z0-9._-]{1,40}$/.test(checked.session)
      ? undefined
      : `session is '${checked.session}'; give 1 to 40 letters, digits, dots, underscores or dashes`,
    ringBytes >= MIN_RING_BYTES && ringBytes <= MAX_RING_BYTES && Number.isInteger(Math.log2(ringBytes))
      ? undefined
      : `ringBytes is ${ringBytes}; give a power of two from ${MIN_RING_BYTES} to ${MAX_RING_BYTES}`,
    checked.inlineBytes >= 0 && checked.inlineBytes <= ringBytes / 4
      ? undefined
      : `inlineBytes is ${checked.inlineBytes}; give 0 to a quarter of ringBytes (${ringBytes / 4})`,
    checked.forgetTimeoutMs >= 0 && checked.closeTimeoutMs >= 0
      ? undefined
      : `forgetTimeoutMs is ${checked.forgetTimeoutMs} and closeTimeoutMs ${checked.closeTimeoutMs}; give no negative times`,
  ];
  const fault = faults.find((text) => text !== undefined);
  if (fault === undefined) return checked;
  throw new UsageError('INVALID_ARGUMENT', fault, { ...checked, space: undefined });
}
