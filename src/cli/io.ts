/**
 * What a command may touch of the outside: where it writes, what it reads, when it must stop. `main.ts` makes it from
 * the process; tests make it from arrays. No command reads the environment or writes to the process by itself.
 */

export interface TextSink {
  write(text: string): void;
}

export interface CommandIo {
  /** Results: what a script would read. */
  readonly stdout: TextSink;
  /** Errors and notes. */
  readonly stderr: TextSink;
  /** Where a progress bar is drawn; undefined if no stream is a terminal. */
  readonly terminal: TextSink | undefined;
  /** Width of the terminal, read again for every frame. */
  readonly columns: number;
  /** Whether output may be coloured. */
  readonly color: boolean;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Folder that relative paths start from. */
  readonly cwd: string;
  /** Aborted by the first interrupt; the reason is the name of the signal, 'SIGINT' or 'SIGTERM'. */
  readonly signal: AbortSignal;
  /** The whole standard input as text. */
  readonly readInput: () => Promise<string>;
}

export const ExitCode = {
  ok: 0,
  /** The run failed. */
  failure: 1,
  /** The command line, the configuration or a path in them is wrong. */
  usage: 2,
} as const;

/** As a shell reports a process that a signal ended. */
export function exitCodeOf(signal: AbortSignal): number {
  return signal.reason === 'SIGTERM' ? 143 : 130;
}

export function bold(io: CommandIo, text: string): string {
  return io.color ? `\x1b[1m${text}\x1b[22m` : text;
}

export function red(io: CommandIo, text: string): string {
  return io.color ? `\x1b[31m${text}\x1b[39m` : text;
}
