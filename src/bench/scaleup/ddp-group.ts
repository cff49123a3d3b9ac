/**
 * PyTorch DDP over gloo as a side of `bench scaleup`, in the variants that are worth racing. How it is started at its best is
 * torch-group.ts.
 */
import type { GroupCommand } from '../allreduce/index.ts';
import { torchGroup, type TorchGroupOptions } from '../torch-group.ts';

/**
 * Gradients of the table by rows, with SparseAdam, or dense; convolutions as PyTorch has them, or products of windows. The
 * fastest one for each batch size is the peer's figure.
 */
export const DDP_VARIANTS = ['sparse+conv', 'sparse+windows', 'dense+conv', 'dense+windows'] as const;

/** The task file is what `writeTorchTask` wrote. */
export function ddpGroup(options: TorchGroupOptions): GroupCommand {
  return torchGroup('ddp_textcnn_peer.py', options);
}
