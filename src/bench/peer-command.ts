/**
 * How each peer of `tributary bench compute` is started at its best: program, arguments and environment. Not the
 * conversation with it (peer-process.ts). Invariant: the environment is the caller's plus settings that make the peer
 * faster; nothing is read from this process's own.
 */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

export interface PeerCommand {
  /** Names the peer in messages. */
  readonly name: string;
  readonly file: string;
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  /** What the user installs if the peer's libraries are missing; ends an error message. */
  readonly install: string;
}

export interface TorchPeerOptions {
  /** Environment of the peer; the settings below are added to it. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Processor flags as in /proc/cpuinfo; default: those of this machine. */
  readonly processorFlags?: ReadonlySet<string>;
  /** The Python that has torch; default: the system's, `/usr/bin/python3`. */
  readonly pythonPath?: string;
}

export interface TfjsPeerOptions {
  /** Environment of the peer. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Folder whose node_modules holds TensorFlow.js. */
  readonly packageFolder: string;
}

/** Flags of the first processor; empty where the system does not tell. */
export function readProcessorFlags(): ReadonlySet<string> {
  try {
    const line = /^flags\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'));
    return new Set(line?.[1]?.trim().split(/\s+/));
  } catch {
    return new Set();
  }
}

/** OpenBLAS 0.3.21 does not know new processors and falls back to kernels 3-5x slower, so it is told. */
export function openBlasCoreType(flags: ReadonlySet<string>): string | undefined {
  if (flags.has('avx512f')) return 'SkylakeX';
  return flags.has('avx2') ? 'Haswell' : undefined;
}

export function torchPeerCommand(options: TorchPeerOptions): PeerCommand {
  const coreType = openBlasCoreType(options.processorFlags ?? readProcessorFlags());
  const tunables = [options.env['GLIBC_TUNABLES'], 'glibc.malloc.hugetlb=1'].filter(Boolean).join(':');
  return {
    name: 'PyTorch',
    file: options.pythonPath ?? '/usr/bin/python3',
    // -E -s: no PYTHONPATH and no user packages, so that the torch measured is the system's; -B: no files left in src.
    args: ['-E', '-s', '-B', fileURLToPath(new URL('../../src/bench/peers/torch_peer.py', import.meta.url))],
    env: {
      ...options.env,
      OPENBLAS_NUM_THREADS: '1',
      OMP_NUM_THREADS: '1',
      ...(coreType === undefined ? {} : { OPENBLAS_CORETYPE: coreType }),
      // Freed blocks stay mapped and on huge pages: spares the page faults of each step's activations (up to 15 %).
      MALLOC_MMAP_THRESHOLD_: '1073741824',
      MALLOC_TRIM_THRESHOLD_: '4294967296',
      MALLOC_TOP_PAD_: '268435456',
      GLIBC_TUNABLES: tunables,
    },
    install: 'apt-get install python3-torch libopenblas0-pthread',
  };
}

export function tfjsPeerCommand(options: TfjsPeerOptions): PeerCommand {
  // From the sources (tests) the peer is TypeScript and needs a loader; built, it is JavaScript beside this file.
  const fromSources = import.meta.url.endsWith('.ts');
  const program = fileURLToPath(new URL(`./peers/tfjs-peer.${fromSources ? 'ts' : 'js'}`, import.meta.url));
  const loader = fromSources ? ['--import', import.meta.resolve('tsx')] : [];
  return {
    name: 'TensorFlow.js',
    file: process.execPath,
    args: [...loader, program, options.packageFolder],
    env: options.env,
    install: 'npm install --ignore-scripts @tensorflow/tfjs-core@4.22.0 @tensorflow/tfjs-backend-wasm@4.22.0',
  };
}
