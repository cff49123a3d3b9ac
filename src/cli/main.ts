/**
 * The program `tributary`: the only place that touches the process. It makes the outside world for `runCommand`, maps
 * the first SIGINT or SIGTERM to an abort and the second to an immediate end, and sets the exit code.
 */
import { text } from 'node:stream/consumers';
import type { CommandIo, TextSink } from './io.ts';
import { SHOW_CURSOR } from './reporter.ts';
import { commandOf, runCommand } from './run-command.ts';

const { stdout, stderr, stdin, env } = process;
const controller = new AbortController();
const terminal = stderr.isTTY ? stderr : stdout.isTTY ? stdout : undefined;

const sink = (stream: NodeJS.WriteStream): TextSink => ({ write: (content) => void stream.write(content) });

const io: CommandIo = {
  stdout: sink(stdout),
  stderr: sink(stderr),
  terminal: terminal && env['TERM'] !== 'dumb' ? sink(terminal) : undefined,
  get columns() {
    // Some pseudo-terminals say 0.
    return terminal?.columns || 80;
  },
  color: stdout.isTTY && (env['NO_COLOR'] ?? '') === '' && env['TERM'] !== 'dumb',
  env,
  cwd: process.cwd(),
  signal: controller.signal,
  readInput: () => text(stdin),
};

for (const [signal, code] of [
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const) {
  process.on(signal, () => {
    if (controller.signal.aborted) {
      if (terminal) terminal.write(`${SHOW_CURSOR}\n`);
      process.exit(code);
    }
    controller.abort(signal);
  });
}

// A reader that has gone away (`| head`) is no failure of ours: what is printed for nobody is dropped.
const outlivesReader = commandOf(process.argv.slice(2))?.outlivesReader ?? false;
for (const stream of [stdout, stderr]) {
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error;
    if (stream === stdout && !outlivesReader) process.exit(0);
  });
}

process.exitCode = await runCommand(process.argv.slice(2), io);
