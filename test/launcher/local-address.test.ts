/** The address of this machine on the way to a scheduler, and what is said of an address that is none. */
import { describe, expect, it } from 'vitest';
import { parseTarget } from '../../src/cluster/joining.ts';
import { joinCluster } from '../../src/launcher/index.ts';
import { localAddressTowards } from '../../src/launcher/local-address.ts';
import { SECRET } from '../support/secrets.ts';

function refusal(scheduler: string): Error {
  try {
    parseTarget(scheduler, undefined);
  } catch (error) {
    return error as Error;
  }
  throw new Error(`'${scheduler}' was taken for an address`);
}

describe('the local address', () => {
  it('towards this machine is the address of this machine', async () => {
    expect(await localAddressTowards('127.0.0.1:7077')).toBe('127.0.0.1');
    expect(['127.0.0.1', '::1']).toContain(await localAddressTowards('localhost:7077'));
  });

  it.each([
    'localhost',
    '',
    ':7077',
    'localhost:',
    'localhost:port',
    'localhost:0',
    'localhost:70000',
    '::1',
  ])("towards '%s' is refused in the words in which joining refuses it", async (scheduler) => {
    const { message } = refusal(scheduler);
    const expected = { name: 'UsageError', code: 'INVALID_ARGUMENT', message, facts: { scheduler } };
    await expect(localAddressTowards(scheduler)).rejects.toMatchObject(expected);
    await expect(joinCluster({ scheduler, secret: SECRET })).rejects.toMatchObject(expected);
  });

  it('towards a name that nobody has is UNREACHABLE', async () => {
    await expect(localAddressTowards('nowhere.invalid:7077')).rejects.toMatchObject({
      code: 'UNREACHABLE',
      message: expect.stringContaining('nowhere.invalid:7077') as string,
    });
  });
});
