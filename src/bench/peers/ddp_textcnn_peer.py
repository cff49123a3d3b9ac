"""PyTorch DDP over gloo as a peer of `tributary bench scaleup`: one rank that trains the text-CNN in lock step with others.

Run as `python3 ddp_textcnn_peer.py HOST PORT TOKEN RANK SIZE STORE TASK`, where STORE is a file that all ranks meet at and
that does not exist yet, and TASK a JSON file with the sizes of the model and the names of two files of int32 beside it,
tokens and labels. It connects to the coordinator, says `hello TOKEN RANK PID`, and then takes one command a line:
  turn BATCH STEPS IGNORED VARIANT   times full training steps and answers `MICROSECONDS ok|wrong`
  quit                               ends the rank, as does the end of the connection
VARIANT is `sparse` or `dense`, the gradient of the table, and `+conv` or `+windows`, the form of the model.
A single rank trains without DDP. What it is not: the judge; the coordinator alternates the sides and compares them.
Invariants: between turns it sleeps in a read; only steps are timed; a turn is `ok` if all ranks end with equal weights.
"""

import datetime
import gc
import json
import os
import socket
import sys
import time

try:
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"missing: {error}")

SEED = 7
VARIANTS = [f"{table}+{form}" for table in ("sparse", "dense") for form in ("conv", "windows")]


class TextCnn(nn.Module):
    """As src/models/text-cnn.ts, relu behind the maximum included."""

    def __init__(self, task, sparse):
        super().__init__()
        size, filters = task["size"], task["filters"]
        self.widths = task["widths"]
        self.dropout, self.embedding_dropout = task["dropout"], task["embeddingDropout"]
        self.embedding = nn.Embedding(task["vocabulary"], size, padding_idx=0, sparse=sparse)
        self.convolutions = nn.ModuleList(self.convolution(size, filters, width) for width in self.widths)
        self.output = nn.Linear(filters * len(self.widths), task["classes"])

    def forward(self, tokens, labels):
        words = F.dropout(self.embedding(tokens), self.embedding_dropout)
        features = torch.cat([F.relu(feature) for feature in self.features(words)], 1)
        return F.cross_entropy(self.output(F.dropout(features, self.dropout)), labels)

    def convolution(self, size, filters, width):
        return nn.Conv1d(size, filters, width, padding=width - 1)

    def features(self, words):
        channels = words.transpose(1, 2)
        return [convolution(channels).max(2)[0] for convolution in self.convolutions]


class TextCnnWindows(TextCnn):
    """Windows side by side in memory, then one product for each width."""

    def convolution(self, size, filters, width):
        return nn.Linear(width * size, filters)

    def features(self, words):
        found = []
        for width, convolution in zip(self.widths, self.convolutions):
            padded = F.pad(words, (0, 0, width - 1, width - 1))
            places = padded.shape[1] - width + 1
            windows = torch.cat([padded[:, i : i + places] for i in range(width)], 2)
            found.append(convolution(windows).max(1)[0])
        return found


class Training:
    def __init__(self, task, variant, rank, size):
        torch.manual_seed(SEED)
        sparse = variant.startswith("sparse")
        model = (TextCnn if variant.endswith("conv") else TextCnnWindows)(task, sparse)
        table = [model.embedding.weight]
        others = [p for p in model.parameters() if p is not model.embedding.weight]
        if sparse:
            self.optimizers = [torch.optim.SparseAdam(table, lr=task["lr"]), adam(others, task)]
        else:
            self.optimizers = [adam(table + others, task)]
        self.parameters = list(model.parameters())
        self.model = model
        if size > 1:
            # The table of the sparse variant is no part of a bucket, and has no view in one.
            self.model = nn.parallel.DistributedDataParallel(
                model, broadcast_buffers=False, gradient_as_bucket_view=not sparse
            )
        # In an order of its own, so that a batch is a view and nothing is copied in a step.
        order = torch.randperm(len(task["labelIds"]), generator=torch.Generator().manual_seed(rank))
        self.tokens, self.labels = task["tokenIds"][order], task["labelIds"][order]
        self.at = 0

    def step(self, batch):
        if self.at + batch > len(self.labels):
            self.at = 0
        end = self.at + batch
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss = self.model(self.tokens[self.at : end], self.labels[self.at : end])
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self.at = end

    def is_right(self, size):
        """All finite, and the same on all ranks."""
        with torch.no_grad():
            total = torch.stack([p.double().sum() for p in self.parameters]).sum()
        if size == 1:
            return bool(torch.isfinite(total))
        ends = torch.stack([total, -total])
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        return bool(torch.isfinite(ends).all() and ends[0] == -ends[1])


def adam(parameters, task):
    return torch.optim.Adam(parameters, lr=task["lr"], foreach=True)


def read_task(path):
    with open(path) as file:
        task = json.load(file)

    def column(name):
        with open(os.path.join(os.path.dirname(path), task[name]), "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.int32).long()

    task["tokenIds"], task["labelIds"] = column("tokens").view(-1, task["length"]), column("labels")
    return task


def turn(training, size, batch, steps):
    gc.collect()
    gc.disable()
    if size > 1:
        dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        training.step(batch)
    seconds = time.perf_counter() - start
    gc.enable()
    return seconds * 1e6 / steps, training.is_right(size)


def main():
    host, port, token, rank, size, store, task = sys.argv[1:]
    rank, size, task = int(rank), int(size), read_task(task)
    torch.set_num_threads(1)
    if size > 1:
        timeout = datetime.timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
    trainings = {variant: Training(task, variant, rank, size) for variant in VARIANTS}
    control = socket.create_connection((host, int(port)))
    commands = control.makefile("r")
    control.sendall(f"hello {token} {rank} {os.getpid()}\n".encode())
    for line in commands:
        words = line.split()
        if words == ["quit"]:
            break
        if len(words) != 5 or words[0] != "turn" or words[4] not in trainings:
            control.sendall(f"error expected turn BATCH STEPS IGNORED {'|'.join(VARIANTS)}, got {line.strip()}\n".encode())
            continue
        microseconds, ok = turn(trainings[words[4]], size, int(words[1]), int(words[2]))
        control.sendall(f"{microseconds:.6f} {'ok' if ok else 'wrong'}\n".encode())
    # Not destroy_process_group: it may wait for ranks that are gone.
    os._exit(0)


main()
