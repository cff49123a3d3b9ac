/**
 * Checks of what users pass: member numbers and envelopes must fit the 32 bits that frames have for them. Pure.
 * Invariant: what passes here is written to the wire without loss.
 */
import { UsageError } from '../../base/index.ts';
import type { OperationKey } from '../matching.ts';
import type { Envelope } from '../transport.ts';

const MAX_U32 = 2 ** 32 - 1;

export function checkMember(member: number): void {
  if (isU32(member)) return;
  throw new UsageError('INVALID_ARGUMENT', `member ${member} is no whole number from 0 to ${MAX_U32}`, {
    member,
  });
}

export function checkEnvelope({ group, tag, sequence, step, signature }: Envelope): void {
  if (isU32(group) && isU32(tag) && isU32(sequence) && isU32(step) && isU32(signature)) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `an envelope has numbers outside 0 to ${MAX_U32}: group ${group}, tag ${tag}, sequence ${sequence}, step ${step}, signature ${signature}; count within 32 bits`,
    { group, tag, sequence, step, signature },
  );
}

/** Whether the message belongs to the operation. */
export function isOf(operation: OperationKey, { group, tag, sequence }: Envelope): boolean {
  return sequence === operation.sequence && tag === operation.tag && group === operation.group;
}

function isU32(value: number): boolean {
  return Number.isInteger(value) && value >= 0 && value <= MAX_U32;
}
