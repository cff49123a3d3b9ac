/**
 * Notices as parts that fit into a slot: cut on the way out, joined on the way in. Parts of one peer come in order, so
 * a part needs no number. Invariant: a text is delivered once, whole.
 */
import { UsageError } from '../../base/index.ts';

export const MAX_NOTICE_BYTES = 32 * 1024;

export interface NoticePart {
  readonly bytes: Uint8Array;
  /** Another part follows. */
  readonly more: boolean;
}

export function noticeParts(text: string, partBytes: number): NoticePart[] {
  const bytes = Buffer.from(text, 'utf8');
  if (bytes.length > MAX_NOTICE_BYTES) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `a notice of ${bytes.length} bytes is more than the ${MAX_NOTICE_BYTES} allowed; send a region instead`,
      { bytes: bytes.length },
    );
  }
  const parts: NoticePart[] = [];
  for (let start = 0; start === 0 || start < bytes.length; start += partBytes) {
    const end = start + partBytes;
    parts.push({ bytes: bytes.subarray(start, end), more: end < bytes.length });
  }
  return parts;
}

export class NoticeReader {
  readonly #begun = new Map<number, Uint8Array[]>();

  /** The text if this was its last part. The bytes are copied. */
  add(peer: number, bytes: Uint8Array, more: boolean): string | undefined {
    const begun = this.#begun.get(peer);
    if (!more && !begun) return Buffer.from(bytes).toString('utf8');
    const parts = [...(begun ?? []), bytes.slice()];
    if (more) {
      this.#begun.set(peer, parts);
      return undefined;
    }
    this.#begun.delete(peer);
    return Buffer.concat(parts).toString('utf8');
  }
}
