/** Processes that are started as workers: what they are told, and what is said of those that end. */
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it, vi } from 'vitest';
import type { WorkerAssignment } from '../../src/launcher/assignment.ts';
import { WorkerProcesses } from '../../src/launcher/worker-processes.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';

const folder = temporaryFolders();
const assignment: WorkerAssignment = {
  ...{ rank: 1, workers: 2, scheduler: '127.0.0.1:1', secret: 's', host: 'elsewhere' },
  transport: 'auto',
};

it('are marked as workers wherever they run, with the words of the command as they are', async () => {
  const place = join(folder(), 'seen');
  const command = ['sh', '-c', 'echo "$TRIBUTARY_WORKER|$1" > "$0"; cat', place, `a 'b' "c" $d`] as const;
  const processes = new WorkerProcesses([{ prefix: ['env', '-i'], assignment }], { command });
  await processes.close();
  expect(readFileSync(place, 'utf8')).toBe(`1|a 'b' "c" $d\n`);
});

it('that cannot be reached are told of with the machine and what ssh said', async () => {
  const ssh = join(folder(), 'ssh');
  writeFileSync(ssh, '#!/bin/sh\necho "ssh: connect to host $1 port 22: No route to host" >&2\nexit 255\n');
  chmodSync(ssh, 0o755);
  const processes = new WorkerProcesses([{ prefix: [ssh, 'elsewhere'], assignment }], {
    log: () => undefined,
  });
  const { code, message } = await processes.failed;
  expect(code).toBe('PEER_LOST');
  expect(message).toMatch(
    /worker 1 \(process \d+\) ended with code 255 on elsewhere; it last wrote: ssh: connect to host elsewhere/,
  );
  await processes.close();
});

it('are ended with all that they have started, when they do not end by themselves', async () => {
  const place = join(folder(), 'pid');
  const command = ['sh', '-c', 'sleep 60 & echo $! > "$0"; echo started >&2; wait', place] as const;
  let tell: () => void;
  const started = new Promise<void>((resolve) => (tell = resolve));
  const processes = new WorkerProcesses([{ assignment }], { command, endMs: 1, log: () => tell() });
  await started;
  await processes.close();
  const pid = readFileSync(place, 'utf8').trim();
  // It may still be in the table of processes, if nobody has asked how it ended.
  await vi.waitFor(() => expect(stateOf(pid)).toMatch(/^(gone|Z|X)$/));
});

function stateOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]![0]!;
  } catch {
    return 'gone';
  }
}
