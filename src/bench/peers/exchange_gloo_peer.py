"""gloo (by torch.distributed) as a peer of `tributary bench exchange`: one rank of a group on this machine.

Run as `python3 exchange_gloo_peer.py HOST PORT TOKEN RANK SIZE STORE COUNT`, where STORE is a file that all ranks meet at
and that does not exist yet, and COUNT the float32 elements of the model. It connects to the coordinator, says `hello
TOKEN RANK PID`, and then takes one command a line:
  turn BYTES ITERATIONS BURST flat   times exchanges and answers `MICROSECONDS ok|wrong CHECKSUM`
  quit                               ends the rank, as does the end of the connection
An exchange is all_reduce of one flat gradient (sum, in place, the fastest form of gloo), then SGD with momentum in place.
What it is not: the judge; the coordinator alternates the peers and compares them. Invariants: between turns it sleeps
in a read; only exchanges are timed; the last ones begin with fresh weights, which are checked bit by bit.
"""

import datetime
import gc
import os
import socket
import sys
import time

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    sys.exit(f"missing: {error}")

# As in known-exchange.ts.
LEARNING_RATE = 2.0**-10
MOMENTUM = 0.9
CHECKED_EXCHANGES = 3
PERIOD = 61
RANK_STEP = 64


def pattern(rank):
    """The gradient of a rank repeats these."""
    return torch.arange(PERIOD, dtype=torch.float32) + (1 + RANK_STEP * rank)


def repeated(values, count):
    return values.repeat((count + PERIOD - 1) // PERIOD)[:count].clone()


def update(weights, momentum, gradient):
    momentum.mul_(MOMENTUM).add_(gradient)
    weights.add_(momentum, alpha=-LEARNING_RATE)


class Exchange:
    def __init__(self, rank, size, count):
        self.size = size
        self.source = repeated(pattern(rank), count)
        self.gradient = self.source.clone()
        self.momentum = torch.zeros(count)
        self.weights = torch.zeros(count)

    def reset(self):
        self.momentum.zero_()
        self.weights.zero_()

    def seconds(self, exchanges):
        """Of so many exchanges, of which each sums what the one before left: the sums double with two ranks."""
        self.gradient.copy_(self.source)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(exchanges):
            dist.all_reduce(self.gradient)
            update(self.weights, self.momentum, self.gradient)
        return time.perf_counter() - start

    def is_right(self, exchanges):
        total = sum(pattern(rank) for rank in range(self.size))
        momentum, weights = torch.zeros(PERIOD), torch.zeros(PERIOD)
        for _ in range(exchanges):
            update(weights, momentum, total)
        whole = self.weights.numel() // PERIOD * PERIOD
        rest = self.weights.numel() - whole
        return bool(
            (self.weights[:whole].view(-1, PERIOD) == weights).all()
            and torch.equal(self.weights[whole:], weights[:rest])
        )

    def checksum(self):
        return int(self.weights.view(torch.int32).sum(dtype=torch.int64)) % 2**32

    def turn(self, iterations, burst):
        seconds = 0.0
        checked = min(CHECKED_EXCHANGES, iterations)
        gc.collect()
        gc.disable()
        left = iterations - checked
        while left > 0:
            now = min(left, burst)
            self.reset()
            seconds += self.seconds(now)
            left -= now
        self.reset()
        for _ in range(checked):
            seconds += self.seconds(1)
        gc.enable()
        return seconds * 1e6 / iterations, self.is_right(checked), self.checksum()


def main():
    host, port, token, rank, size, store, count = sys.argv[1:]
    rank, size, count = int(rank), int(size), int(count)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60)
    )
    exchange = Exchange(rank, size, count)
    control = socket.create_connection((host, int(port)))
    commands = control.makefile("r")
    control.sendall(f"hello {token} {rank} {os.getpid()}\n".encode())
    for line in commands:
        words = line.split()
        if words == ["quit"]:
            break
        if len(words) != 5 or words[0] != "turn" or words[1] != str(4 * count) or words[4] != "flat":
            control.sendall(f"error expected turn {4 * count} ITERATIONS BURST flat, got {line.strip()}\n".encode())
            continue
        microseconds, ok, checksum = exchange.turn(int(words[2]), int(words[3]))
        control.sendall(f"{microseconds:.6f} {'ok' if ok else 'wrong'} {checksum:08x}\n".encode())
    # Not destroy_process_group: it may wait for ranks that are gone.
    os._exit(0)


main()
