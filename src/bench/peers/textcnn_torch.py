"""What the PyTorch peers of `tributary bench scaleup` share: the text-CNN, its samples, and the conversation about turns.

A task is a JSON file with the sizes of the model and the names of two files of int32 beside it, tokens and labels. A rank
connects to the coordinator, says `hello TOKEN RANK PID`, and then takes one command a line:
  turn BATCH STEPS IGNORED VARIANT   times full training steps and answers `MICROSECONDS ok|wrong`
  quit                               ends the rank, as does the end of the connection
What it is not: an exchange, which each peer brings by a training with `step(batch)`, `meet()` and `is_right()`.
Invariants: between turns a rank sleeps in a read; only steps are timed; all peers train the same model on the same samples.
"""

import gc
import json
import os
import socket
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 7


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

    def table_and_others(self):
        table = self.embedding.weight
        return table, [p for p in self.parameters() if p is not table]

    def total(self):
        """Of all weights; equal on two ranks if their weights are."""
        with torch.no_grad():
            return torch.stack([p.double().sum() for p in self.parameters()]).sum()


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


FORMS = {"conv": TextCnn, "windows": TextCnnWindows}


def build_model(task, form, sparse):
    """With the same weights on all ranks."""
    torch.manual_seed(SEED)
    return FORMS[form](task, sparse)


class Batches:
    """All samples again and again, in an order of the rank's own."""

    def __init__(self, task, rank):
        # Ordered once, so that a batch is a view and nothing is copied in a step.
        order = torch.randperm(len(task["labelIds"]), generator=torch.Generator().manual_seed(rank))
        self.tokens, self.labels = task["tokenIds"][order], task["labelIds"][order]
        self.at = 0

    def draw(self, batch):
        if self.at + batch > len(self.labels):
            self.at = 0
        start, self.at = self.at, self.at + batch
        return self.tokens[start : self.at], self.labels[start : self.at]


def read_task(path):
    with open(path) as file:
        task = json.load(file)

    def column(name):
        with open(os.path.join(os.path.dirname(path), task[name]), "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.int32).long()

    task["tokenIds"], task["labelIds"] = column("tokens").view(-1, task["length"]), column("labels")
    return task


def time_steps(training, batch, steps):
    """Microseconds for each step, and whether the weights are right in the end."""
    gc.collect()
    gc.disable()
    training.meet()
    start = time.perf_counter()
    for _ in range(steps):
        training.step(batch)
    seconds = time.perf_counter() - start
    gc.enable()
    return seconds * 1e6 / steps, training.is_right()


def serve_turns(host, port, token, rank, trainings):
    """Takes turns until the coordinator has enough; `trainings` are by variant."""
    control = socket.create_connection((host, int(port)))
    commands = control.makefile("r")
    control.sendall(f"hello {token} {rank} {os.getpid()}\n".encode())
    for line in commands:
        words = line.split()
        if words == ["quit"]:
            return
        if len(words) != 5 or words[0] != "turn" or words[4] not in trainings:
            known = "|".join(trainings)
            control.sendall(f"error expected turn BATCH STEPS IGNORED {known}, got {line.strip()}\n".encode())
            continue
        microseconds, ok = time_steps(trainings[words[4]], int(words[1]), int(words[2]))
        control.sendall(f"{microseconds:.6f} {'ok' if ok else 'wrong'}\n".encode())
