"""PyTorch DDP over gloo as a peer of `tributary bench runner`: one rank that trains an image model in lock step with others.

Run as `python3 ddp_models_peer.py HOST PORT TOKEN RANK SIZE STORE TASK`, where STORE is a file that all ranks meet at and that
does not exist yet; the conversation is that of textcnn_torch.py. TASK is a JSON file: the model, a file of tensors (its
parameters in the model's own order, then the samples in the order of training), the batch of a rank, the rate of plain SGD, and
the losses of the first steps on so many ranks. A single rank trains without DDP.
What it is not: the judge; the coordinator alternates the sides and compares them.
Invariants: no turn is taken unless every variant came to those losses; a turn is `ok` if all ranks end with equal weights.
"""

import datetime
import json
import os
import sys

try:
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"missing: {error}")

from textcnn_torch import serve_turns
from torch_models import ResNet

TOLERANCE = 1e-3


class Lenet(nn.Module):
    """As src/models/lenet.ts: two convolutions of 5x5 with 16 and 32 filters, each with relu and pooling, dense 128, dense 10."""

    def __init__(self, flags):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 5, padding=2), nn.Conv2d(16, 32, 5, padding=2)
        self.hidden, self.output = nn.Linear(32 * 7 * 7, 128), nn.Linear(128, 10)
        self.pools_first = "pool_first" in flags

    def forward(self, x, y):
        for conv in (self.conv1, self.conv2):
            # The maximum of relus is the relu of the maximum, on a quarter of the elements.
            x = F.relu(F.max_pool2d(conv(x), 2)) if self.pools_first else F.max_pool2d(F.relu(conv(x)), 2)
        return F.cross_entropy(self.output(F.relu(self.hidden(torch.flatten(x, 1)))), y)


# name -> class and flags of its variants
MODELS = {
    "cnn": (Lenet, ["plain", "channels_last", "pool_first", "channels_last+pool_first"]),
    "resnet": (ResNet, ["plain", "channels_last"]),
}


class Training:
    def __init__(self, task, tensors, variant, rank, size):
        flags = variant.split("+")
        self.rank, self.size, self.lr, self.at = rank, size, task["lr"], 0
        model = MODELS[task["model"]][0](flags)
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), tensors[: -task["columns"]], strict=True):
                assert parameter.shape == value.shape, f"{list(parameter.shape)} here, {list(value.shape)} given"
                parameter.copy_(value)
        self.x, self.y = tensors[-2], tensors[-1].long()
        if "channels_last" in flags:
            model = model.to(memory_format=torch.channels_last)
            # Once for all samples: a batch is a view of them, and nothing is copied in a step.
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.parameters = list(model.parameters())
        self.loss = model
        if size > 1:
            # Statistics of batches are each rank's own, as ours are.
            self.loss = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)

    def step(self, batch):
        total = batch * self.size
        if self.at + total > len(self.y):
            self.at = 0
        start = self.at + self.rank * batch
        self.at += total
        loss = self.loss(self.x[start : start + batch], self.y[start : start + batch])
        loss.backward()
        with torch.no_grad():
            # Without the bookkeeping of an optimizer, which is slower.
            torch._foreach_add_(self.parameters, [p.grad for p in self.parameters], alpha=-self.lr)
        for parameter in self.parameters:
            parameter.grad = None
        return loss.detach()

    def meet(self):
        if self.size > 1:
            dist.barrier()

    def is_right(self):
        """All finite, and the same on all ranks."""
        total = torch.stack([p.detach().double().sum() for p in self.parameters]).sum()
        ends = torch.stack([total, -total])
        if self.size > 1:
            dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        return bool(torch.isfinite(ends).all() and ends[0] == -ends[1])

    def compare(self, batch, losses, what):
        for step, expected in enumerate(losses):
            loss = self.step(batch)
            dist.all_reduce(loss)
            actual = loss.item() / self.size
            if not abs(actual - expected) <= TOLERANCE * max(1, abs(expected)):
                sys.exit(f"{what}: the loss of step {step} is {actual} here and {expected} at Tributary; the comparison would be void")


def read_tensors(path):
    """All tensors of a file that peer-tensors.ts wrote, in its order."""
    with open(path) as file:
        manifest = json.load(file)
    with open(os.path.join(os.path.dirname(path), manifest["data"]), "rb") as file:
        content = bytearray(file.read())
    types = {"float32": torch.float32, "int32": torch.int32}

    def tensor(dtype, shape, byteOffset, **_):
        count = torch.Size(shape).numel()
        return torch.frombuffer(content, dtype=types[dtype], count=count, offset=byteOffset).reshape(shape)

    return [tensor(**entry) for entry in manifest["tensors"]]


def main():
    host, port, token, rank, size, store, task = sys.argv[1:]
    rank, size = int(rank), int(size)
    with open(task) as file:
        task = json.load(file)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if size > 1:
        timeout = datetime.timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
    tensors = read_tensors(task["tensors"])
    variants = MODELS[task["model"]][1]
    trainings = {name: Training(task, tensors, name, rank, size) for name in variants}
    for name, training in trainings.items():
        # One rank alone has smaller batches than those that the losses are of.
        if size > 1:
            training.compare(task["batch"], task["losses"], f"{task['model']} ({name})")
    serve_turns(host, port, token, rank, trainings)
    # Not destroy_process_group: it may wait for ranks that are gone.
    os._exit(0)


main()
