/** The program as its users start it: a process of its own, here of these sources. Every child is gone after its test. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach } from 'vitest';
import { programOf } from '../support/test-program.ts';

const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url));
const children = new Set<ChildProcess>();

afterEach(() => {
  for (const child of children) child.kill('SIGKILL');
  children.clear();
});

export interface ProgramEvent {
  readonly type?: string;
  readonly [field: string]: unknown;
}

export interface Program {
  readonly child: ChildProcess;
  /** Lines of standard output so far. */
  readonly lines: string[];
  /** Resolves with the first event of the type, also if it is past; rejects if the program ends without one. */
  waitFor(type: string): Promise<ProgramEvent>;
  readonly ended: Promise<{
    code: number | null;
    signal: NodeJS.Signals | null;
    lines: string[];
    stderr: string;
  }>;
}

export function start(args: readonly string[], cwd: string): Program {
  const child = spawn(process.execPath, [...programOf(main), ...args], {
    cwd,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  children.add(child);
  const lines: string[] = [];
  let stderr = '';
  const waiting = new Set<{
    type: string;
    resolve: (event: ProgramEvent) => void;
    reject: (error: Error) => void;
  }>();
  const reader = createInterface({ input: child.stdout });
  reader.on('line', (line) => {
    lines.push(line);
    for (const waiter of waiting) if (typeOf(line) === waiter.type) waiter.resolve(parse(line));
  });
  child.stderr.on('data', (text: Buffer) => (stderr += text.toString()));
  const ended = Promise.all([once(child, 'exit'), once(reader, 'close')]).then(([[code, signal]]) => {
    children.delete(child);
    for (const waiter of waiting)
      waiter.reject(new Error(`The program ended without ${waiter.type}: ${lines.join('\n')}${stderr}`));
    return { code: code as number | null, signal: signal as NodeJS.Signals | null, lines, stderr };
  });
  const waitFor = (type: string) =>
    new Promise<ProgramEvent>((resolve, reject) => {
      const past = lines.find((line) => typeOf(line) === type);
      if (past !== undefined) resolve(parse(past));
      waiting.add({ type, resolve, reject });
    });
  return { child, lines, waitFor, ended };
}

export function parse(line: string): ProgramEvent {
  return JSON.parse(line) as ProgramEvent;
}

function typeOf(line: string): unknown {
  return line.startsWith('{') ? parse(line).type : undefined;
}
