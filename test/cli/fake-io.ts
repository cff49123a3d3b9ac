/** An outside world for commands that run inside the test: what they write is kept, and the clock is the test's. */
import type { CommandIo } from '../../src/cli/io.ts';
import { runCommand } from '../../src/cli/run-command.ts';

export interface FakeIo extends CommandIo {
  readonly written: { stdout: string; stderr: string; terminal: string };
  columns: number;
}

export interface FakeIoOptions {
  readonly cwd?: string;
  readonly isTerminal?: boolean;
  readonly columns?: number;
  readonly env?: Readonly<Record<string, string>>;
  readonly input?: string;
  readonly signal?: AbortSignal;
}

export function fakeIo(options: FakeIoOptions = {}): FakeIo {
  const written = { stdout: '', stderr: '', terminal: '' };
  const sink = (name: keyof typeof written) => ({ write: (text: string) => void (written[name] += text) });
  return {
    written,
    stdout: sink('stdout'),
    stderr: sink('stderr'),
    terminal: options.isTerminal ? sink('terminal') : undefined,
    columns: options.columns ?? 80,
    color: false,
    env: options.env ?? {},
    cwd: options.cwd ?? process.cwd(),
    signal: options.signal ?? new AbortController().signal,
    readInput: () => Promise.resolve(options.input ?? ''),
  };
}

export interface CommandResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

export async function run(argv: readonly string[], options: FakeIoOptions = {}): Promise<CommandResult> {
  const io = fakeIo(options);
  const code = await runCommand(argv, io);
  return { code, stdout: io.written.stdout, stderr: io.written.stderr };
}
