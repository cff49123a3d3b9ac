/**
 * Who owns a segment: a process, named by its id and its start time, so that a recycled id is not taken for
 * the owner, in its PID namespace, because ids of another one mean nothing here. Invariant: doubt means
 * alive; a segment is only taken for stale when its owner is certainly gone.
 */
import { readFileSync, readlinkSync } from 'node:fs';

export interface ProcessIdentity {
  readonly pid: number;
  /** Field 22 of /proc/<pid>/stat: clock ticks after boot. */
  readonly startTicks: bigint;
  /** Inode of the PID namespace; 0 when unknown. */
  readonly pidNamespace: bigint;
}

export function currentProcess(): ProcessIdentity {
  const stat = readStat(process.pid);
  const startTicks = typeof stat === 'object' ? stat.startTicks : 0n;
  return { pid: process.pid, startTicks, pidNamespace: pidNamespace() };
}

export function isAlive(owner: ProcessIdentity): boolean {
  const here = pidNamespace();
  if (here === 0n || owner.pidNamespace !== here) return true;
  const stat = readStat(owner.pid);
  if (stat === undefined) return answersSignals(owner.pid);
  if (stat === 'unreadable') return true;
  // A zombie keeps its entry until its parent looks, but will never touch its memory again.
  if (stat.state === 'Z' || stat.state === 'X') return false;
  return stat.startTicks === owner.startTicks;
}

/** /proc may hide the processes of other users; a signal that is not sent still tells whether one is there. */
function answersSignals(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}

function pidNamespace(): bigint {
  try {
    return BigInt(/\[(\d+)\]/.exec(readlinkSync('/proc/self/ns/pid'))?.[1] ?? 0);
  } catch {
    return 0n;
  }
}

interface Stat {
  readonly state: string;
  readonly startTicks: bigint;
}

function readStat(pid: number): Stat | 'unreadable' | undefined {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'latin1');
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    return code === 'ENOENT' || code === 'ESRCH' ? undefined : 'unreadable';
  }
  // The command name, in brackets, may hold spaces and brackets: fields are counted after the last one.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const ticks = fields[19];
  if (ticks === undefined || !/^\d+$/.test(ticks)) return 'unreadable';
  return { state: fields[0] ?? '', startTicks: BigInt(ticks) };
}
