"""PyTorch with an exchange written by hand, by mpi4py, as a peer of `tributary bench scaleup`: one rank in lock step.

Run by mpirun as `python3 mpi_textcnn_peer.py HOST PORT TOKEN TASK`; TASK and the conversation are those of
textcnn_torch.py. VARIANT is the exchange of the dense gradients, which lie in one flat tensor, and the form of the model:
  allreduce   one allreduce, then every rank updates all weights
  sharded     a reduce-scatter, every rank updates its share of the weights, an allgather of the weights
and `+conv` or `+windows`. Of the table only touched rows are exchanged, by an allgather. A single rank exchanges nothing.
What it is not: the judge; nor torch's optimizers, whose bookkeeping costs more than the arithmetic of small updates.
Invariant: all ranks apply the same mean gradient by Adam in the same order, so their weights stay equal, bit by bit.
"""

import math
import sys

try:
    import torch
    from mpi4py import MPI
except ImportError as error:
    sys.exit(f"missing: {error}")

from textcnn_torch import Batches, build_model, FORMS, read_task, serve_turns

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class MpiTraining:
    def __init__(self, task, variant, comm):
        exchange, form = variant.split("+")
        self.comm, self.lr = comm, task["lr"]
        self.model = build_model(task, form, sparse=True)
        self.table, others = self.model.table_and_others()
        self.batches = Batches(task, comm.rank)
        self.dense = FlatWeights(others, comm, is_sharded=exchange == "sharded")
        self.rows = TableRows(self.table, comm)
        self.steps = 0

    def step(self, batch):
        self.dense.gradient.zero_()
        self.table.grad = None
        self.model(*self.batches.draw(batch)).backward()
        self.steps += 1
        correction = math.sqrt(1 - BETA2**self.steps)
        rate = self.lr * correction / (1 - BETA1**self.steps)
        with torch.no_grad():
            # Adam and SparseAdam do not agree on whether epsilon is corrected too.
            self.dense.exchange_and_update(rate, EPSILON * correction)
            self.rows.exchange_and_update(rate, EPSILON)

    def meet(self):
        self.comm.Barrier()

    def is_right(self):
        """All finite, and the same on all ranks."""
        total = self.model.total().item()
        return math.isfinite(total) and self.comm.allreduce(total, MPI.MAX) == self.comm.allreduce(total, MPI.MIN)


class FlatWeights:
    """All parameters but the table, and their gradients, as one tensor each that they are views of."""

    def __init__(self, parameters, comm, is_sharded):
        self.comm, self.is_sharded = comm, is_sharded and comm.size > 1
        elements = sum(p.numel() for p in parameters)
        # Shares are equal; the last elements may be nobody's.
        share = -(-elements // comm.size)
        self.weights, self.gradient = torch.zeros(share * comm.size), torch.zeros(share * comm.size)
        at = 0
        for p in parameters:
            end = at + p.numel()
            self.weights[at:end] = p.detach().flatten()
            p.data, p.grad = self.weights[at:end].view_as(p), self.gradient[at:end].view_as(p)
            at = end
        self.mine, self.summed = self.weights, self.gradient
        if self.is_sharded:
            self.mine = self.weights[comm.rank * share : (comm.rank + 1) * share]
            self.summed = torch.zeros(share)
        self.first, self.second, self.root = (torch.zeros_like(self.mine) for _ in range(3))

    def exchange_and_update(self, rate, epsilon):
        ranks, gradient = self.comm.size, self.summed
        if self.is_sharded:
            self.comm.Reduce_scatter_block(self.gradient.numpy(), gradient.numpy())
        elif ranks > 1:
            self.comm.Allreduce(MPI.IN_PLACE, gradient.numpy())
        # What came is the sum; the mean is taken on the way, which spares a pass.
        self.first.mul_(BETA1).add_(gradient, alpha=(1 - BETA1) / ranks)
        self.second.mul_(BETA2).addcmul_(gradient, gradient, value=(1 - BETA2) / ranks**2)
        torch.sqrt(self.second, out=self.root).add_(epsilon)
        self.mine.addcdiv_(self.first, self.root, value=-rate)
        if self.is_sharded:
            self.comm.Allgather(MPI.IN_PLACE, self.weights.numpy())


class TableRows:
    """The embedding table, of which a step touches few rows; as in SparseAdam the others keep what they have."""

    def __init__(self, table, comm):
        self.comm, self.table = comm, table
        self.first, self.second = torch.zeros_like(table), torch.zeros_like(table)

    def exchange_and_update(self, rate, epsilon):
        ranks, table = self.comm.size, self.table
        touched = table.grad.coalesce()
        if ranks > 1:
            touched = torch.sparse_coo_tensor(*self.gather(touched), table.shape).coalesce()
        ids, gradient = touched.indices()[0], touched.values()
        first = self.first[ids].mul_(BETA1).add_(gradient, alpha=(1 - BETA1) / ranks)
        second = self.second[ids].mul_(BETA2).addcmul_(gradient, gradient, value=(1 - BETA2) / ranks**2)
        self.first[ids], self.second[ids] = first, second
        table.data.index_add_(0, ids, first.div_(second.sqrt_().add_(epsilon)), alpha=-rate)

    def gather(self, touched):
        """Ids and rows of all ranks, one rank behind the other."""
        ids, rows = touched.indices(), touched.values()
        counts = torch.empty(self.comm.size, dtype=torch.int64)
        self.comm.Allgather(torch.tensor([ids.shape[1]]).numpy(), counts.numpy())
        counts = counts.tolist()
        all_ids = torch.empty(1, sum(counts), dtype=torch.int64)
        all_rows = torch.empty(sum(counts), rows.shape[1])
        self.comm.Allgatherv(ids.numpy(), [all_ids.numpy(), counts])
        self.comm.Allgatherv(rows.numpy(), [all_rows.numpy(), [count * rows.shape[1] for count in counts]])
        return all_ids, all_rows


def main():
    host, port, token, task = sys.argv[1:]
    comm, task = MPI.COMM_WORLD, read_task(task)
    torch.set_num_threads(1)
    variants = [f"{exchange}+{form}" for exchange in ("allreduce", "sharded") for form in FORMS]
    serve_turns(host, port, token, comm.rank, {name: MpiTraining(task, name, comm) for name in variants})


main()
