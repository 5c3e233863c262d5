"""A switch and its workers over a network that loses, doubles and reorders packets, as a schedule of draws says."""

import heapq
import math

import numpy as np

from geartrain.collectives.aggregation.stream import WorkerStream
from geartrain.collectives.aggregation.switch import SwitchState
from geartrain.collectives.aggregation.timer import RetransmissionTimer


class Lossy:
    """Packets on their way. Every draw comes from one seeded stream.

    Args:
        loss, copies: probability that a packet is lost, and that it comes twice.
        late: how many packets may overtake one.
    """

    def __init__(self, seed, loss=0.0, copies=0.0, late=1):
        self.random = np.random.default_rng(seed)
        self.loss, self.copies, self.late = loss, copies, late
        self.waiting = []  # a heap of (when it comes, order, receiver, row)
        self.sent = self.now = self.order = 0

    def send(self, receiver, rows):
        for row in rows:
            self.sent += 1
            for _ in range(1 + (self.random.random() < self.copies)):
                if self.random.random() >= self.loss:
                    delay = int(self.random.integers(1, self.late + 1))
                    self.order += 1
                    heapq.heappush(self.waiting, (self.now + delay, self.order, receiver, row[None].copy()))

    def next(self):
        """(receiver, packet), or None when nothing is on its way."""
        if not self.waiting:
            return None
        self.now += 1
        return heapq.heappop(self.waiting)[2:]


def aggregate(tensors, numbers, *, network, slots, width, switch=None, rounds=1, patience=20_000, look=None):
    """The sums on every worker, of `rounds` tensors one after another; also all that was sent, and the longest window.

    Workers begin a tensor as soon as they have the one before, whatever the others do. Raises TimeoutError when it
    takes more than `patience` events.
    """
    n = len(tensors)
    switch = switch or SwitchState(n, slots, width)
    timers = [RetransmissionTimer(50.0, 400.0) for _ in range(n)]
    streams, results = [None] * n, [[] for _ in range(n)]
    packets = [0] * n

    def begin(worker):
        chunks = padded(tensors[worker], width)
        stream = WorkerStream(worker, chunks, numbers, slots, packets[worker], timers[worker])
        packets[worker] += stream.num_packets
        streams[worker] = (stream, chunks)
        for rows in stream.start(network.now):
            network.send("switch", rows)

    for worker in range(n):
        begin(worker)
    for _ in range(patience):
        if all(len(found) == rounds for found in results):
            return results, network.sent, packets
        event = network.next()
        if event is None:  # time passes until the next timer
            timer = min(stream.deadline for stream, _ in streams)
            if timer == math.inf:
                break
            network.now = max(network.now, int(timer) + 1)
        elif event[0] == "switch":
            replies = switch.on_packets(event[1])
            for rows in replies.to_all:
                for worker in range(n):
                    network.send(worker, rows)
            for worker, rows in replies.to_one:
                network.send(worker, rows)
        else:
            worker = event[0]
            stream, chunks = streams[worker]
            for rows in stream.on_packets(event[1], network.now):
                network.send("switch", rows)
            if stream.done and len(results[worker]) < rounds:
                results[worker].append(chunks.reshape(-1)[: tensors[worker].size].copy())
                if len(results[worker]) < rounds:
                    begin(worker)
        for stream, _ in streams:
            for rows in stream.on_timeout(network.now):
                network.send("switch", rows)
            assert (stream._issued & ~stream._received).sum() <= slots
        if look is not None:
            look(streams, switch)
    raise TimeoutError(f"not done after {patience} events, or nothing on its way: {[len(found) for found in results]}")


def padded(tensor, width):
    chunks = np.zeros((-(-tensor.size // width), width), tensor.dtype)
    chunks.reshape(-1)[: tensor.size] = tensor
    return chunks
