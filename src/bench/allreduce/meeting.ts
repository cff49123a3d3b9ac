/**
 * Where our ranks of a bench meet: a scheduler in the coordinator's process, and a file that tells the ranks its address
 * and the secret. Not on a command line, which every user of the machine could read. Invariant: the file is readable by
 * its owner alone.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { Scheduler } from '../../cluster/index.ts';

const FILE = 'meeting.json';
const Meeting = z.object({ scheduler: z.string(), secret: z.string() });

/** Starts the scheduler of a run and says in the folder where it is; the caller closes it. */
export async function openMeeting(folder: string, ranks: number): Promise<Scheduler> {
  const secret = randomBytes(16).toString('hex');
  const scheduler = await Scheduler.start({ size: ranks, secret });
  const meeting = { scheduler: scheduler.address, secret };
  await writeFile(join(folder, FILE), JSON.stringify(meeting), { mode: 0o600 });
  return scheduler;
}

/** For ranks. */
export function readMeeting(folder: string): z.infer<typeof Meeting> {
  return Meeting.parse(JSON.parse(readFileSync(join(folder, FILE), 'utf8')));
}
