"""PyTorch DDP over gloo as a peer of `tributary bench scaleup`: one rank that trains the text-CNN in lock step with others.

Run as `python3 ddp_textcnn_peer.py HOST PORT TOKEN RANK SIZE STORE TASK`, where STORE is a file that all ranks meet at and
that does not exist yet; TASK and the conversation are those of textcnn_torch.py. VARIANT is `sparse` or `dense`, the
gradient of the table, and `+conv` or `+windows`, the form of the model. A single rank trains without DDP.
What it is not: the judge; the coordinator alternates the sides and compares them.
Invariant: a turn is `ok` if all ranks end with equal weights.
"""

import datetime
import os
import sys

try:
    import torch
    import torch.distributed as dist
    import torch.nn as nn
except ImportError as error:
    sys.exit(f"missing: {error}")

from textcnn_torch import Batches, build_model, FORMS, read_task, serve_turns


class DdpTraining:
    def __init__(self, task, variant, rank, size):
        gradient, form = variant.split("+")
        sparse = gradient == "sparse"
        self.size, self.model = size, build_model(task, form, sparse)
        table, others = self.model.table_and_others()
        if sparse:
            self.optimizers = [torch.optim.SparseAdam([table], lr=task["lr"]), adam(others, task)]
        else:
            self.optimizers = [adam([table, *others], task)]
        self.loss = self.model
        if size > 1:
            # The table of the sparse variant is no part of a bucket, and has no view in one.
            self.loss = nn.parallel.DistributedDataParallel(
                self.model, broadcast_buffers=False, gradient_as_bucket_view=not sparse
            )
        self.batches = Batches(task, rank)

    def step(self, batch):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.loss(*self.batches.draw(batch)).backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def meet(self):
        if self.size > 1:
            dist.barrier()

    def is_right(self):
        """All finite, and the same on all ranks."""
        total = self.model.total()
        if self.size == 1:
            return bool(torch.isfinite(total))
        ends = torch.stack([total, -total])
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        return bool(torch.isfinite(ends).all() and ends[0] == -ends[1])


def adam(parameters, task):
    return torch.optim.Adam(parameters, lr=task["lr"], foreach=True)


def main():
    host, port, token, rank, size, store, task = sys.argv[1:]
    rank, size, task = int(rank), int(size), read_task(task)
    torch.set_num_threads(1)
    if size > 1:
        timeout = datetime.timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
    variants = [f"{gradient}+{form}" for gradient in ("sparse", "dense") for form in FORMS]
    serve_turns(host, port, token, rank, {name: DdpTraining(task, name, rank, size) for name in variants})
    # Not destroy_process_group: it may wait for ranks that are gone.
    os._exit(0)


main()
