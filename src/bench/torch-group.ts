/**
 * How ranks of a PyTorch program are started at their best, to train in lock step over gloo; one rank is PyTorch alone. Not the
 * conversation with them, which is that of `bench allreduce`: a turn's bytes are the samples in a batch of one rank, its operations
 * are training steps. Invariant: the environment is the caller's plus settings that make the peer faster.
 */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { GroupCommand } from './allreduce/index.ts';
import { torchPeerCommand } from './peer-command.ts';

export interface TorchGroupOptions {
  /** Processes in lock step; one exchanges with nobody. */
  readonly ranks: number;
  /** What the program reads to know what it trains. */
  readonly taskFile: string;
  /** A folder of this run alone, for what the ranks meet at. */
  readonly folder: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** `program` is a file of `peers/`, called with `HOST PORT TOKEN RANK SIZE STORE TASK`. */
export function torchGroup(
  program: string,
  { ranks, taskFile, folder, env }: TorchGroupOptions,
): GroupCommand {
  // From the built package the sources are two folders up.
  const path = fileURLToPath(new URL(`../../src/bench/peers/${program}`, import.meta.url));
  const torch = torchPeerCommand({ env });
  const network = { GLOO_SOCKET_IFNAME: 'lo' };
  const store = join(folder, `ddp-${randomBytes(4).toString('hex')}`);
  const added = Object.entries(torch.env).filter(([name, value]) => env[name] !== value);
  return {
    name: ranks === 1 ? 'PyTorch' : `PyTorch DDP (gloo, ${ranks} processes)`,
    ranks,
    processes: ({ host, port, token }) =>
      Array.from({ length: ranks }, (_, rank) => ({
        file: torch.file,
        // -E -s: the torch measured is the system's; -B: no files left beside the program.
        args: [
          ...['-E', '-s', '-B', path, host, `${port}`, token],
          ...[`${rank}`, `${ranks}`, store, taskFile],
        ],
      })),
    env: { ...torch.env, ...network },
    settings: { ...(Object.fromEntries(added) as Record<string, string>), ...network },
    install: torch.install,
  };
}
