/** Log lines about connections that were closed for a fault, by a clock of the test. */
import { beforeEach, describe, expect, it } from 'vitest';
import { FaultLog } from '../../src/sockets/index.ts';

describe('the log of faults', () => {
  let lines: string[];
  let faults: FaultLog;

  beforeEach(() => {
    lines = [];
    faults = new FaultLog((line) => lines.push(line));
  });

  it('has some lines of an address in a minute, then how many were left out', () => {
    for (let i = 0; i < 1000; i++) faults.say('192.0.2.1', `fault ${i}`, i);
    expect(lines).toHaveLength(10);
    faults.look(59_000);
    expect(lines).toHaveLength(10);
    faults.look(60_000);
    expect(lines).toHaveLength(11);
    expect(lines[10]).toContain('left out 990 lines');
    expect(lines[10]).toContain('192.0.2.1');
    faults.look(120_000);
    expect(lines).toHaveLength(11);
    faults.say('192.0.2.1', 'again', 121_000);
    expect(lines[11]).toBe('again');
  });

  it('has those of other addresses all the same', () => {
    for (let i = 0; i < 1000; i++) faults.say('192.0.2.1', 'flood', i);
    faults.say('192.0.2.2', 'other', 1000);
    expect(lines.at(-1)).toBe('other');
  });

  it('stays short for a flood from many addresses, and for all that one machine can choose', () => {
    for (let i = 0; i < 100_000; i++) {
      faults.say(`10.${i >> 16}.${(i >> 8) & 255}.${i & 255}`, 'flood', 0);
      faults.say(`2001:db8::${i.toString(16)}`.replace(/:(\w+)(\w{4})$/, ':$1:$2'), 'flood', 0);
    }
    faults.look(60_000);
    expect(lines.length).toBeLessThan(1000);
  });
});
