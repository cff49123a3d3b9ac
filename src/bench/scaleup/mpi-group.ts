/**
 * How PyTorch with an exchange written by hand on MPI is started at its best for `bench scaleup`: ranks of mpirun, bound to
 * cores, messages through shared memory. Not the conversation with it, which is that of ddp-group.ts. Invariant: the
 * environment is the caller's plus settings that make the peer faster or let it run.
 */
import { fileURLToPath } from 'node:url';
import { mpirunArguments, mpirunEnvironment } from '../allreduce/group-command.ts';
import type { GroupCommand } from '../allreduce/index.ts';
import { torchPeerCommand } from '../peer-command.ts';
import type { TorchGroupOptions } from '../torch-group.ts';

/**
 * Dense gradients by one allreduce, or reduced, applied and gathered by shares; convolutions as PyTorch has them, or products
 * of windows. The fastest one for each batch size is the peer's figure.
 */
export const MPI_VARIANTS = [
  'allreduce+conv',
  'allreduce+windows',
  'sharded+conv',
  'sharded+windows',
] as const;

export function mpiGroup({ ranks, taskFile, folder, env }: TorchGroupOptions): GroupCommand {
  // From the built package the sources are two folders up.
  const program = fileURLToPath(new URL('../../../src/bench/peers/mpi_textcnn_peer.py', import.meta.url));
  const torch = torchPeerCommand({ env });
  const mpi = mpirunEnvironment(folder);
  const added = Object.entries(torch.env).filter(([name, value]) => env[name] !== value);
  return {
    name: `PyTorch with MPI by hand (${ranks} process${ranks === 1 ? '' : 'es'})`,
    ranks,
    processes: ({ host, port, token }) => [
      {
        file: 'mpirun',
        // -E -s: the torch measured is the system's; -B: no files left beside the program.
        args: [
          ...[...mpirunArguments(ranks, 'vader'), torch.file, '-E', '-s', '-B', program],
          ...[host, `${port}`, token, taskFile],
        ],
      },
    ],
    env: { ...torch.env, ...mpi },
    settings: { ...(Object.fromEntries(added) as Record<string, string>), ...mpi },
    install: `${torch.install} python3-mpi4py openmpi-bin`,
  };
}
