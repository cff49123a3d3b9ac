/**
 * What the commands that serve until they are stopped have in common: how they tell what happens, how they wait, and which
 * addresses others can reach. They own what they started and close it themselves. Invariant: standard output has lines for
 * people, or with --json one object for each event and nothing else.
 */
import type { CommandIo } from './io.ts';

export interface ServiceEvent {
  readonly type: string;
  readonly [field: string]: unknown;
}

export interface ServiceVoice {
  /** The event as an object, or as a line for people. */
  tell(event: ServiceEvent, text: string): void;
  /** Something that deserves attention; for people it goes where errors go. */
  warn(text: string): void;
}

export function serviceVoice(io: CommandIo, json: boolean | undefined): ServiceVoice {
  const record = (event: ServiceEvent) => io.stdout.write(`${JSON.stringify(event)}\n`);
  if (json) return { tell: record, warn: (text) => record({ type: 'warning', text }) };
  return {
    tell: (_event, text) => io.stdout.write(`${text}\n`),
    warn: (text) => io.stderr.write(`Warning: ${text}\n`),
  };
}

const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Serving has no end of its own: a signal ends it. */
export async function untilAborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return;
  // Neither handlers of signals nor the threads of a server keep a process alive.
  const alive = setInterval(() => undefined, LONGEST_TIMER_MS);
  await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
  clearInterval(alive);
}

/** Whether only processes of this machine can connect; a name that is not known here counts as open to others. */
export function isLoopback(address: string): boolean {
  return address === 'localhost' || address === '::1' || /^127(\.\d{1,3}){3}$/.test(address);
}

export function addressText(host: string, port: number): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}
