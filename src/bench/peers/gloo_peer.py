"""gloo (by torch.distributed) as a peer of `tributary bench allreduce`: one rank of a group on this machine.

Run as `python3 gloo_peer.py HOST PORT TOKEN RANK SIZE STORE`, where STORE is a file that all ranks meet at and that does
not exist yet. It connects to the coordinator, says `hello TOKEN RANK PID`, and then takes one command a line:
  turn BYTES ITERATIONS BURST VARIANT   times all_reduce (float32, sum, in place) and answers `MICROSECONDS ok|wrong`
  quit                                  ends the rank, as does the end of the connection
What it is not: the judge; the coordinator alternates the peers and compares them. Invariants: between turns it sleeps
in a read; only the calls are timed, and their result is checked.
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

TOLERANCE = 1e-5


def pattern(rank):
    """Small whole numbers that repeat after 8 elements; the other peers use the same."""
    return torch.tensor([1 + ((i + 3 * rank) & 7) for i in range(8)], dtype=torch.float32)


def repeated(values, count):
    return values.repeat((count + 7) // 8)[:count].clone()


def turn(vector, source, size, iterations, burst):
    seconds = 0.0
    left = iterations
    gc.collect()
    gc.disable()
    while left > 0:
        now = min(left, burst)
        vector.copy_(source)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(now):
            dist.all_reduce(vector)
        seconds += time.perf_counter() - start
        left -= now
    gc.enable()
    # An in-place sum multiplies what all ranks hold alike by their number, each time after the first.
    expected = sum(pattern(r).double() for r in range(size)) * float(size) ** (now - 1)
    ok = torch.allclose(vector, repeated(expected.float(), vector.numel()), rtol=TOLERANCE, atol=0)
    return seconds * 1e6 / iterations, ok


def main():
    host, port, token, rank, size, store = sys.argv[1:]
    rank, size = int(rank), int(size)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60)
    )
    control = socket.create_connection((host, int(port)))
    commands = control.makefile("r")
    control.sendall(f"hello {token} {rank} {os.getpid()}\n".encode())
    vector = source = torch.empty(0)
    for line in commands:
        words = line.split()
        if words == ["quit"]:
            break
        if len(words) != 5 or words[0] != "turn":
            control.sendall(f"error cannot read the command: {line.strip()}\n".encode())
            continue
        count = int(words[1]) // 4
        if vector.numel() != count:
            source = repeated(pattern(rank), count)
            vector = source.clone()
        microseconds, ok = turn(vector, source, size, int(words[2]), int(words[3]))
        control.sendall(f"{microseconds:.6f} {'ok' if ok else 'wrong'}\n".encode())
    # Not destroy_process_group: it may wait for ranks that are gone.
    os._exit(0)


main()
