/** Errors that cross threads arrive as what they were. */
import { describe, expect, it } from 'vitest';
import { InternalError, PeerError, UsageError } from '../../src/base/index.ts';
import { pack, unpack } from '../../src/base/packed-error.ts';

/** As a port does it. */
const cross = (error: unknown) => unpack(structuredClone(pack(error)));

describe('an error of the communication thread', () => {
  it.each([UsageError, PeerError, InternalError])(
    'keeps its class, code, message, facts and cause: %s',
    (Class) => {
      const cause = new PeerError('UNREACHABLE', 'rank 1 cannot be reached', { rank: 1 });
      const facts = { rank: 2, calls: { 0: 'barrier', 1: null }, counts: [1, 2] };
      const error = new Class('TIMEOUT', 'rank 2 is late', facts, cause);
      const arrived = cross(error);
      expect(arrived).toBeInstanceOf(Class);
      expect(arrived).toMatchObject({ name: error.name, code: 'TIMEOUT', message: 'rank 2 is late', facts });
      expect(arrived.stack).toBe(error.stack);
      expect(arrived.cause).toBeInstanceOf(PeerError);
      expect(arrived.cause).toMatchObject({ code: 'UNREACHABLE', facts: { rank: 1 } });
    },
  );

  it('that is none of ours is an InternalError with its message', () => {
    for (const thrown of [new TypeError('x is not a function'), 'x is not a function']) {
      const arrived = cross(thrown);
      expect(arrived).toBeInstanceOf(InternalError);
      expect(arrived.code).toBe('BROKEN_INVARIANT');
      expect(arrived.message).toContain('x is not a function');
    }
  });

  it('keeps a cause that is none of ours as it is', () => {
    const system = new Error('EIO: i/o error, fsync', { cause: new UsageError('TIMEOUT', 'late') });
    const arrived = cross(new UsageError('FILE_NOT_WRITTEN', 'not written', {}, system));
    expect(arrived.cause).toBeInstanceOf(Error);
    expect(arrived.cause).toMatchObject({ name: 'Error', message: system.message, stack: system.stack });
    expect((arrived.cause as Error).cause).toMatchObject({ name: 'UsageError', code: 'TIMEOUT' });
  });

  it('arrives even if its facts cannot be sent', () => {
    const arrived = cross(new UsageError('INVALID_ARGUMENT', 'no', { rank: 1, given: () => 1 }));
    expect(arrived).toMatchObject({ code: 'INVALID_ARGUMENT', facts: { rank: '1', given: '() => 1' } });
  });
});
