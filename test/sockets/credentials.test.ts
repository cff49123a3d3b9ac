/** The proofs of the handshake: what is good, and everything near it that is not. */
import { describe, expect, it } from 'vitest';
import { answer, challenge, isNonce, verify } from '../../src/cluster/index.ts';
import type { Exchange } from '../../src/cluster/index.ts';

const exchange = (): Exchange => ({
  purpose: 'test',
  version: 1,
  callerNonce: challenge(),
  listenerNonce: challenge(),
});

describe('credentials', () => {
  it('give nonces that differ', () => {
    const nonces = Array.from({ length: 100 }, challenge);
    expect(nonces.every(isNonce)).toBe(true);
    expect(new Set(nonces).size).toBe(100);
  });

  it('accept the answer of the same secret, role and exchange', () => {
    const both = exchange();
    expect(verify('s3cret', 'caller', both, answer('s3cret', 'caller', both))).toBe(true);
    expect(verify('s3cret', 'listener', both, answer('s3cret', 'listener', both))).toBe(true);
  });

  it('refuse the answer of another secret, role, nonce, purpose or version, so neither replay nor reflection', () => {
    const both = exchange();
    const proof = answer('s3cret', 'caller', both);
    expect(verify('other', 'caller', both, proof)).toBe(false);
    expect(verify('s3cret', 'listener', both, proof)).toBe(false);
    for (const change of [
      { callerNonce: challenge() },
      { listenerNonce: challenge() },
      { callerNonce: both.listenerNonce, listenerNonce: both.callerNonce },
      { purpose: 'other' },
      { version: 2 },
    ]) {
      expect(verify('s3cret', 'caller', { ...both, ...change }, proof), JSON.stringify(change)).toBe(false);
    }
  });

  it.each([
    undefined,
    null,
    7,
    '',
    'ab',
    'z'.repeat(64),
    'a'.repeat(63),
    'A'.repeat(64),
    {},
    ['a'.repeat(64)],
  ])('refuse %j as a proof', (proof) => {
    expect(verify('s3cret', 'caller', exchange(), proof)).toBe(false);
  });

  it('never contain the secret', () => {
    expect(answer('s3cret', 'caller', exchange())).not.toContain('s3cret');
  });
});
