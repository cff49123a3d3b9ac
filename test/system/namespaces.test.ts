/**
 * Allreduce between hosts whose links carry 1 Gbit/s in each direction: on our TCP transport, on Open MPI, and on both
 * memory and network at once. With TRIBUTARY_ACCEPTANCE set the times are asserted too: the best of three must reach
 * 85 % of what the links allow, which is 2 (n - 1) / n of the vector over the rate. One TCP stream reaches 93 %: a twentieth
 * goes to the headers of Ethernet, IP and TCP.
 */
import { cpus } from 'node:os';
import { afterEach, describe, expect, it } from 'vitest';
import { ALL_REDUCE_ALGORITHMS } from '../../src/collectives/index.ts';
import { component } from '../support/components.ts';
import { createHosts } from '../../src/bench/hosts.ts';
import type { Hosts } from '../../src/bench/hosts.ts';
import { byForm } from '../support/long-form.ts';
import { runByMpirun, runByScheduler } from './namespaces-cluster.ts';
import type { AlgorithmResult, Outcome } from './namespaces-cluster.ts';

const MEGABYTES = 2 ** 20;
/** A shared machine may lose time at any moment, so the share is only demanded where the machine is kept quiet for it. */
const WANTED_SHARE = byForm(0.85, 0.25);
/** Where no share is demanded, just enough that a vector goes through all chunks, lanes and buffers many times. */
const VECTOR_MB = byForm(64, 16);
const COUNTS = byForm([2, 4], [2]);
const DEADLINE_MS = 40_000;

/**
 * Left alone, Open MPI asks the receiver of a message above 64 KB for leave, and then sends all of it as one fragment.
 * The leave for the other direction waits behind that fragment, so the directions take turns and half of the link is idle.
 * Fragments of 128 KB instead of one (no 'put'), and no asking for the messages of our rings, keep both directions busy.
 */
const FULL_DUPLEX = {
  btl_tcp_flags: 'send,inplace,need-ack,need-csum,hetero-rdma',
  btl_tcp_eager_limit: String(MEGABYTES / 2),
  // The hosts share the cores of this machine.
  mpi_yield_when_idle: '1',
};

const iproute = component('iproute2');
const openMpi = component('openmpi-bin');

/** What the slowest link must carry in each direction, at its full rate. */
function linkSeconds(hosts: number, bytes: number, rateMbit: number): number {
  return (((2 * (hosts - 1)) / hosts) * bytes * 8) / (rateMbit * 1e6);
}

function shareOfLink({ seconds }: AlgorithmResult, allowed: number): number {
  return allowed / Math.min(...seconds);
}

/** Prints all times; fails on the first rank that ended by an error and on any element that is not the exact sum. */
function check(title: string, { results, costs, errors, errorOutput }: Outcome, allowed: number): void {
  const lines = results.map((result) => {
    const times = result.seconds.map((seconds) => seconds.toFixed(3)).join(' ');
    return `  ${result.algorithm.padEnd(16)} ${times} s, best ${(100 * shareOfLink(result, allowed)).toFixed(1)} %`;
  });
  console.log([`${title}; the links allow ${allowed.toFixed(3)} s`, ...lines, costs].join('\n'));
  expect(
    errors.filter((error) => error !== undefined),
    errorOutput,
  ).toEqual([]);
  expect(results.length, errorOutput).toBeGreaterThan(0);
  for (const { algorithm, wrong } of results) expect({ algorithm, wrong }).toEqual({ algorithm, wrong: 0 });
}

let net: Hosts | undefined;
afterEach(() => {
  net?.close();
  net = undefined;
});

describe.skipIf(!iproute.present)(`hosts with links of 1 Gbit/s (${iproute.needs}, root)`, () => {
  it.each(COUNTS)(`%i hosts: allreduce of ${VECTOR_MB} MB over TCP uses the links`, async (count) => {
    net = createHosts({ count });
    const bytes = VECTOR_MB * MEGABYTES;
    const algorithms = ['auto', 'ring', 'rings', 'halving-doubling'] as const;
    const outcome = await runByScheduler(
      net.switch,
      net.hosts,
      { algorithms, bytes, repeats: 3, measure: true },
      // The hosts share the cores of this machine.
      () => ({ transport: 'tcp', yieldWhileSpinning: count > cpus().length, deadlineMs: DEADLINE_MS }),
    );
    const allowed = linkSeconds(count, bytes, net.rateMbit);
    check(`${count} hosts, ${VECTOR_MB} MB over TCP`, outcome, allowed);
    expect(outcome.results.map(({ ranks }) => ranks)).toEqual(algorithms.map(() => count));
    expect(shareOfLink(outcome.results[0]!, allowed)).toBeGreaterThanOrEqual(WANTED_SHARE);
  });

  // Four ranks of Open MPI spin on two cores for most of a minute.
  it.skipIf(!openMpi.present).each(COUNTS)(
    `%i hosts: allreduce of ${VECTOR_MB} MB over Open MPI uses the links (${openMpi.needs})`,
    async (count) => {
      net = createHosts({ count });
      const bytes = VECTOR_MB * MEGABYTES;
      const algorithms = ['auto', 'native', 'ring', 'rings'] as const;
      const outcome = await runByMpirun(net, { algorithms, bytes, repeats: 3, measure: true }, FULL_DUPLEX);
      const allowed = linkSeconds(count, bytes, net.rateMbit);
      check(`${count} hosts, ${VECTOR_MB} MB over Open MPI`, outcome, allowed);
      expect(outcome.results.map(({ ranks }) => ranks)).toEqual(algorithms.map(() => count));
      expect(shareOfLink(outcome.results[0]!, allowed)).toBeGreaterThanOrEqual(WANTED_SHARE);
    },
  );

  it('2 hosts of 2 ranks: every algorithm is right with memory inside and TCP between', async () => {
    net = createHosts({ count: 2 });
    const [first, second] = net.hosts as [Hosts['hosts'][0], Hosts['hosts'][0]];
    const bytes = 16 * MEGABYTES;
    const outcome = await runByScheduler(
      net.switch,
      [first, first, second, second],
      { algorithms: ['every'], bytes, repeats: 2, measure: true },
      () => ({ transport: 'auto', yieldWhileSpinning: true, deadlineMs: DEADLINE_MS }),
    );
    // Only one rank of a host need speak to the other host.
    check('2 hosts of 2 ranks, 16 MB', outcome, linkSeconds(2, bytes, net.rateMbit));
    expect(outcome.costs).toContain('4 ranks, 2 hosts');
    expect(outcome.results.map(({ algorithm }) => algorithm)).toEqual(
      ALL_REDUCE_ALGORITHMS.filter((name) => name !== 'native'),
    );
  });

  it.each([
    ['no route', /no route to the network/],
    ['dropped', /it did not answer/],
  ] as const)(
    'names the member and the address that cannot be reached, in bounded time: %s',
    async (how, reason) => {
      net = createHosts({ count: 2 });
      const address = net.unreachableAddress(0, how);
      const { errors, results, errorOutput } = await runByScheduler(
        net.switch,
        net.hosts,
        { algorithms: ['auto'], bytes: 4096, repeats: 1, measure: false },
        (rank) => ({ transport: 'tcp', connectTimeoutMs: 2000, ...(rank === 0 ? { address } : {}) }),
      );
      expect(results).toEqual([]);
      expect(errors[1], errorOutput).toMatchObject({ code: 'UNREACHABLE' });
      expect(errors[1]!.message).toMatch(/member 0 \(process \d+ on [\w-]+-host0\)/);
      expect(errors[1]!.message).toContain(`at ${address}:`);
      expect(errors[1]!.message).toMatch(reason);
      // The one that nobody reaches is told who did not come.
      expect(errors[0], errorOutput).toMatchObject({ code: 'UNREACHABLE' });
      expect(errors[0]!.message).toMatch(/member 1 \(process \d+ on [\w-]+-host1\)/);
    },
  );
});
