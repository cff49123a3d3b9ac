/**
 * How PyTorch DDP over gloo is started at its best for `bench scaleup`; one process is PyTorch alone. Not the conversation
 * with it, which is that of `bench allreduce`: a turn's bytes are the samples in a batch, its operations are training steps.
 * Invariant: the environment is the caller's plus settings that make the peer faster.
 */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { GroupCommand } from '../allreduce/index.ts';
import { torchPeerCommand } from '../peer-command.ts';

/**
 * Gradients of the table by rows, with SparseAdam, or dense; convolutions as PyTorch has them, or products of windows. The
 * fastest one for each batch size is the peer's figure.
 */
export const DDP_VARIANTS = ['sparse+conv', 'sparse+windows', 'dense+conv', 'dense+windows'] as const;

export interface TorchGroupOptions {
  /** Processes in lock step; one exchanges with nobody. */
  readonly ranks: number;
  /** What `writeTorchTask` wrote. */
  readonly taskFile: string;
  /** A folder of this run alone, for what the ranks meet at. */
  readonly folder: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

export function ddpGroup({ ranks, taskFile, folder, env }: TorchGroupOptions): GroupCommand {
  // From the built package the sources are two folders up.
  const program = fileURLToPath(new URL('../../../src/bench/peers/ddp_textcnn_peer.py', import.meta.url));
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
          ...['-E', '-s', '-B', program, host, `${port}`, token],
          ...[`${rank}`, `${ranks}`, store, taskFile],
        ],
      })),
    env: { ...torch.env, ...network },
    settings: { ...(Object.fromEntries(added) as Record<string, string>), ...network },
    install: torch.install,
  };
}
