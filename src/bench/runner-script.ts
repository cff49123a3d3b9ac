/**
 * Scripts of `getRunner` as benchmarks start them: on this machine or on hosts made of network namespaces, from the sources or built.
 * The script gets one order as JSON and prints one line of JSON. Measures nothing itself.
 * Invariant: the first worker runs on the first host, and the script's own workers end with it.
 */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { PeerError } from '../base/index.ts';
import type { Workers } from '../runner/index.ts';
import type { Hosts } from './hosts.ts';

export interface RunnerScriptOptions {
  /** The script's address without its ending: it is TypeScript among the sources, and JavaScript built. */
  readonly script: URL;
  /** What it is to do; plain data. */
  readonly order: object;
  /** What it measures, for errors: 'ResNet by shared memory'. */
  readonly title: string;
  /** Where it runs. Default: this machine. */
  readonly hosts?: Hosts | undefined;
  /** Default 600,000. */
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** What workers on these hosts are told about them. Those on one host share memory, if there are several. */
export function workersOn({ hosts }: Hosts, workersEach = 1): Workers {
  const machines = hosts.map((host, i) => {
    const { name, address } = host;
    const [file, args] = host.command('');
    const own = { name, address, workers: workersEach };
    return i === 0 ? own : { ...own, command: [file, ...args.slice(0, -1)] };
  });
  return { machines, transport: workersEach === 1 ? 'tcp' : 'auto' };
}

/** What the script printed. */
export async function runScript<T>(options: RunnerScriptOptions): Promise<T> {
  const { script, order, title, hosts, timeoutMs = 600_000, signal } = options;
  const fromSources = import.meta.url.endsWith('.ts');
  const program = `${fileURLToPath(script)}.${fromSources ? 'ts' : 'js'}`;
  const loader = fromSources ? ['--import', import.meta.resolve('tsx')] : [];
  const node = [process.execPath, ...loader, program, JSON.stringify(order)] as const;
  const [file, args] = hosts ? hosts.hosts[0]!.command(...node) : [node[0], node.slice(1)];
  try {
    const { stdout } = await promisify(execFile)(file, args, {
      ...{ signal, timeout: timeoutMs, killSignal: 'SIGKILL', maxBuffer: MOST_PRINTED_BYTES },
    });
    return JSON.parse(stdout) as T;
  } catch (cause) {
    throw new PeerError(
      'PEER_EXITED',
      `${title} gave no figures; look at what the workers say: ${wordsOf(cause, timeoutMs)}`,
      { title },
      cause,
    );
  }
}

const MOST_PRINTED_BYTES = 2 ** 26;

/** What went wrong, as far as the script said it. */
function wordsOf(cause: unknown, timeoutMs: number): string {
  const { stderr = '', killed = false } = cause as { stderr?: string; killed?: boolean };
  const late = killed ? ` (ended after ${timeoutMs} ms at the latest)` : '';
  return `${stderr.trim() || String(cause)}${late}`;
}
