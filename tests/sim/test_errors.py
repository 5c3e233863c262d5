"""Whatever goes wrong ends within seconds, says who stands where and why, and leaves the process as it was."""

import logging
import os
import random
import re
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch

from geartrain.cost.compute import Constant
from geartrain.errors import CollectiveMismatch, DeadlockError, RankFailed, ScriptError
from geartrain.record.log import RunRecord
from geartrain.sim import kernel

pytestmark = pytest.mark.timeout(60)

BEGIN = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
"""


def process_state() -> dict[str, object]:
    return {
        "environ": (id(os.environ), {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}),
        "argv": list(sys.argv),
        "path": list(sys.path),
        "main": sys.modules["__main__"],
        "clocks": (time.time, time.sleep, time.perf_counter, time.monotonic),
        "streams": (sys.stdout, sys.stderr, sys.excepthook),
        "torch random": torch.get_rng_state().tolist(),
        "python random": random.getstate(),
        "numpy random": str(np.random.get_state()),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "folder": os.getcwd(),
        "log": (list(logging.getLogger().handlers), logging.getLogger().level),
        "filters": list(warnings.filters),
        "group": torch.distributed.is_initialized(),
        "ranks": [t.name for t in threading.enumerate() if t.name.startswith("rank ")],
    }


@pytest.fixture(autouse=True)
def left_behind():
    before = process_state()
    began = time.perf_counter()
    yield
    assert time.perf_counter() - began < 20
    after = process_state()
    for name, value in before.items():
        assert after[name] == value, name


def line_of(text: str, fragment: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if fragment in line)


ROUNDS_BEGIN = f"{BEGIN}for step in range(5):\n"

CYCLE = f"{BEGIN}dist.recv(x, src=(rank - 1) % size)\ndist.send(x, dst=(rank + 1) % size)\n"
SKIPPED_LAST = f"{ROUNDS_BEGIN}    if rank != 1 or step != 4:\n        dist.all_reduce(x)\ndist.recv(x)\n"
EARLY = f"{BEGIN}dist.barrier()\nif rank == 2:\n    sys.exit()\ndist.all_reduce(x)\n"
LONE_SEND = f"{BEGIN}if rank == 0:\n    dist.send(x, dst=1, tag=3)\nif rank == 1:\n    dist.recv(x, src=0, tag=4)\n"
ROUNDS = f"{ROUNDS_BEGIN}    if rank != 1 or step != 3:\n        dist.all_reduce(x)\n    dist.barrier()\n"
EXTRA = f"{ROUNDS_BEGIN}    if rank == 2 and step == 3:\n        dist.broadcast(x, 0)\n    dist.barrier()\n"
SHAPE = f"{BEGIN}x = torch.ones(4 - (rank == 2))\ndist.all_reduce(x)\n"
DTYPE = f"{BEGIN}x = x if rank else x.int()\ndist.all_reduce(x)\n"
OPERATION = f"{BEGIN}dist.all_reduce(x, dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX)\n"
ROOT = f"{BEGIN}dist.broadcast(x, src=0 if rank else 1)\n"
ORDER = f"{BEGIN}dist.all_reduce(x)\nif rank:\n    dist.barrier()\nelse:\n    dist.reduce(x, 0)\n"
MESSAGE = f"{BEGIN}if rank == 0:\n    dist.send(x, dst=1)\nif rank == 1:\n    dist.recv(torch.ones(3), src=0)\n"
SHARES = f"""{BEGIN}
gives = [torch.ones(1 + (rank == 1)) for _ in range(3)]
dist.all_to_all([torch.ones(1) for _ in range(3)], gives)
"""
RAISES = f"{BEGIN}def inner():\n    raise ValueError('bad number')\nif rank == 1:\n    inner()\ndist.barrier()\n"
STATUS = f"{BEGIN}dist.all_reduce(x)\nif rank == 1:\n    sys.exit(3)\ndist.barrier()\n"


CASES = {
    "cycle": (CYCLE, DeadlockError, "dist.recv(", ["a cycle of waits: rank 0 -> rank 2 -> rank 1 -> rank 0", "isend"]),
    "skipped": (
        SKIPPED_LAST,
        DeadlockError,
        "dist.all_reduce(",
        [
            "ranks 0, 2  wait in all_reduce #4 of group 0 (16 B), entered by ranks 0, 2, not by rank 1",
            "rank 1  waits in recv from any rank",
            "rank 1 skipped all_reduce #4",
            "ranks 0, 2 wait in it",
        ],
    ),
    "early": (EARLY, RankFailed, "dist.all_reduce(x)", ["rank 2 ended while others wait for it", "rank 2  has ended"]),
    "lone send": (LONE_SEND, DeadlockError, "dist.send(", ["tag 3", "tag 4", "no matching recv is posted"]),
    "rounds": (ROUNDS, CollectiveMismatch, "dist.barrier(", ["rank 1 skipped all_reduce #6", "rank 1  raised this"]),
    "extra": (EXTRA, CollectiveMismatch, "dist.broadcast(", ["rank 2 added broadcast #3"]),
    "shape": (SHAPE, CollectiveMismatch, "dist.all_reduce(", ["[4 x float32]", "[3 x float32]", "smaller last batch"]),
    "dtype": (DTYPE, CollectiveMismatch, "dist.all_reduce(", ["float32", "int32", "another reduction, root or type"]),
    "operation": (OPERATION, CollectiveMismatch, "dist.all_reduce(", ["op=sum", "op=max", "another reduction"]),
    "root": (ROOT, CollectiveMismatch, "dist.broadcast(", ["root=0", "root=1"]),
    "order": (ORDER, CollectiveMismatch, "dist.reduce(", ["barrier", "reduce op=sum root=0", "left out"]),
    "message": (MESSAGE, CollectiveMismatch, "dist.recv(", ["rank 0 sends 4 x float32", "receives into 3 x float32"]),
    "shares": (SHARES, CollectiveMismatch, "dist.all_to_all(", ["rank 1 sends 2 elements to rank 0", "room for 1"]),
    "raises": (RAISES, RankFailed, "raise ValueError", ["rank 1 raised ValueError: bad number", "in inner"]),
    "status": (STATUS, RankFailed, "", ["rank 1 left early, with exit status 3"]),
}


@pytest.mark.parametrize(("text", "kind", "at", "words"), CASES.values(), ids=CASES)
def test_message_names_ranks_lines_and_cause(text, kind, at, words, simulate, tmp_path):
    with pytest.raises(kind) as caught:
        simulate(text, ranks=3)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    if at:
        assert f"{tmp_path}/script.py:{line_of(text, at)} in " in message, message
    record = caught.value.record
    assert isinstance(record, RunRecord)
    assert record.interrupted == kind.__name__ and len(record.logs) == 3


def test_error_of_one_rank_carries_its_cause_and_rank(simulate):
    with pytest.raises(RankFailed) as caught:
        simulate(RAISES)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.rank == 1


def test_a_timeout_of_a_wait_is_virtual(simulate):
    text = f"""{BEGIN}
from datetime import timedelta
if rank == 0:
    work = dist.irecv(x, src=1)
    try:
        work.wait(timedelta(seconds=3600))
    except TimeoutError as error:
        print("timed out", time.monotonic() > 3600)
        work.wait()
else:
    time.sleep(7200)
    dist.send(x, dst=0)
"""
    record = simulate(text)
    assert record.logs[0].end > 7200 and record.wall < 10


def test_a_rank_that_waits_outside_is_noticed(simulate, monkeypatch):
    monkeypatch.setattr(kernel, "REAL_WAIT", 1)
    text = f"{BEGIN}import threading\ngate = threading.Event()\nif rank == 1:\n    gate.wait(4)\ndist.barrier()\n"
    with pytest.raises(ScriptError, match="rank 1 waits for something outside the simulated world") as caught:
        simulate(text)
    assert f"script.py:{line_of(text, 'gate.wait')} in" in str(caught.value)


@pytest.mark.parametrize("compute", [Constant(1e-6), None])
@pytest.mark.parametrize("body", ["dist.all_reduce(x)", "x.add_(1)"])
def test_keyboard_interrupt_leaves_what_was_measured(body, compute, simulate, monkeypatch):
    def interrupt(self) -> None:
        time.sleep(0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(kernel.Kernel, "_watch", interrupt)
    record = simulate(f"{BEGIN}while True:\n    {body}\n", compute=compute)
    assert record.interrupted and "keyboard" in record.interrupted
    assert len(record.logs) == 2


def test_a_deadlock_of_many_ranks_is_told_briefly(simulate):
    with pytest.raises(DeadlockError) as caught:
        simulate(f"{BEGIN}if rank:\n    dist.barrier()\nelse:\n    dist.recv(x)\n", ranks=40)
    message = str(caught.value)
    assert "ranks 1-39  wait in barrier #0" in message
    assert len(message.splitlines()) < 12
    assert not re.search(r"site-packages|geartrain/sim", message)
