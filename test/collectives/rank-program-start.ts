/**
 * How a rank program of the tests begins: reads its settings, joins its cluster, and talks with the test by lines. Not a
 * test itself; the test's side is `support/rank-processes.ts`. Invariant: a rank never outlives its test, whose end
 * closes the input.
 */
import { createInterface } from 'node:readline';
import type { Cluster } from '../../src/cluster/index.ts';
import { joinCluster, joinMpiJob } from '../../src/launcher/index.ts';
import type { TransportChoice } from '../../src/launcher/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { ProgressOptions } from '../../src/progress/index.ts';
import { machineMs } from '../support/rank-processes.ts';
import type { RankSettings } from '../support/rank-processes.ts';

export const settings = JSON.parse(process.argv[2]!) as RankSettings;

/** Small, because many ranks of a test share one machine. */
const SPACE_BYTES = 256 * 2 ** 20;

/** Says a line to the test; one write, so that lines of ranks do not mix. */
export function say(what: string, facts: Readonly<Record<string, unknown>> = {}): void {
  process.stdout.write(`${JSON.stringify({ what, atMs: machineMs(), ...facts })}\n`);
}

const told: string[] = [];
const waiting = new Map<string, () => void>();

// mpirun keeps the input of all ranks but the first.
if (settings.transport !== 'mpi') {
  const input = createInterface(process.stdin);
  input.on('line', (line) => {
    told.push(line);
    waiting.get(line)?.();
  });
  input.on('close', () => process.exit(1));
}

/** Whether the test has said so; news come only while the event loop runs. */
export function wasTold(line: string): boolean {
  return told.includes(line);
}

export async function untilTold(line: string): Promise<void> {
  if (!wasTold(line)) await new Promise<void>((resolve) => waiting.set(line, resolve));
}

export async function enterCluster(options: ProgressOptions = {}): Promise<Cluster> {
  const { transport, scheduler, secret } = settings;
  const space = SharedSpace.create({ maxBytes: SPACE_BYTES });
  const times = { deadlineMs: 30_000, ...options };
  if (transport === 'mpi') {
    const sharedMemory = settings['sharedMemory'] as boolean | undefined;
    return joinMpiJob({ space, sharedMemory, measure: false, ...times });
  }
  const choice: TransportChoice = transport;
  return joinCluster({
    scheduler,
    secret,
    space,
    transport: choice,
    measure: false,
    ...times,
  });
}

/** Closes the cluster and lets the process end. */
export async function leaveCluster(cluster: Cluster): Promise<void> {
  await cluster.close();
  process.stdin.unref();
  say('closed');
  process.exit(0);
}
