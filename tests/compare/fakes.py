"""An engine that runs nothing, and a strategy that does nothing, for what stands around them."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from geartrain.cluster import ServicePlace, load_cluster
from geartrain.compare.grid import Grid
from geartrain.cost.terms import Cost, Traffic
from geartrain.engines.base import Engine
from geartrain.record.log import Blocked, StepMark
from geartrain.runtime.strategy import Paper, Roles, Strategy
from geartrain.runtime.worker import Task
from geartrain.workload.spec import Layer, Parameter, Workload
from tests.record.logs import op, rank, record


@dataclass(frozen=True, kw_only=True)
class Fake(Strategy):
    """Takes `time` seconds a step, of which `comm` are communication of `nbytes`."""

    name: ClassVar[str] = "fake"
    paper: ClassVar[Paper] = Paper(title="T", authors="A", year=2000, where="nowhere")

    time: float = 1.0
    comm: float = 0.25
    nbytes: int = 1000
    server: bool = False

    def __str__(self):
        return f"fake:time={self.time:g},nbytes={self.nbytes}"

    def roles(self, num_workers):
        return Roles((ServicePlace("server"),) if self.server else ())

    def bind(self, ctx, task):
        raise AssertionError("nothing runs here")

    def cost(self, workload, place, batch):
        return Cost(compute=self.time, sent=(Traffic(nbytes=self.nbytes, messages=2),) * place.num_ranks)


class NoTask(Task):
    """Nothing to train."""

    name = "nothing"
    source = "made up"

    def model(self, seed):
        return nn.Linear(1, 1)

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=0.1)

    def loss(self, model, batch):
        raise AssertionError

    def metric(self, model):
        return {}

    def batches(self, rank, num_workers, batch, seed):
        raise AssertionError


class FakeEngine(Engine):
    """Hands back logs made from the strategy's numbers; `trouble` may raise or change them first."""

    name = "simulated"
    capabilities = frozenset({"virtual_time", "meta"})

    def __init__(self, trouble=None):
        self.trouble, self.calls = trouble, []

    def run(self, main, cluster, *, workers, services=(), seed=0, meta=False):
        self.calls.append((str(main.strategy), cluster.name, workers))
        run = made_up_record(main, workers, services)
        return self.trouble(main, workers, run) or run if self.trouble else run


def made_up_record(main, workers, services):
    s, peers = main.strategy, tuple(range(workers))
    logs = []
    for number in range(workers):
        ops, blocked, marks = [], [], []
        for step in range(main.steps):
            end = (step + 1) * s.time
            ops.append(op(("g", step), end - s.comm, end, nbytes=s.nbytes, peers=peers))
            blocked.append(Blocked(end - s.comm, end, ("g", step), ""))
            marks.append(StepMark(step, step * s.time, end, {"loss": 2.0 + number - step, "samples": 1}))
        log = rank(number, ops=ops, blocked=blocked, end=main.steps * s.time)
        log.steps.extend(marks)
        logs.append(log)
    logs += [rank(workers + i, role=service.name, end=1.0) for i, service in enumerate(services)]
    result = {"metric": {"accuracy": 0.5}} if main.evaluate else {}
    return record(*logs, results=[result, *[{}] * (len(logs) - 1)])


WEIGHT = Parameter("w", (10,), 0)
WORKLOAD = Workload(name="tiny", source="made up", layers=(Layer(name="l", parameters=(WEIGHT,)),))


def grid(*, engine=None, strategies=None, clusters=("ethernet-1g",), ranks=(2,), **values):
    engine = engine or FakeEngine()
    settings = {
        "task": NoTask(),
        "subject": "nothing",
        "workload": WORKLOAD,
        "meta": False,
        "strategies": strategies or (Fake(), Fake(time=2.0, comm=1.25, nbytes=4000)),
        "clusters": tuple(load_cluster(name) if isinstance(name, str) else name for name in clusters),
        "ranks": ranks,
        "engine": lambda cluster: engine,
        "engine_name": "simulated",
        "steps": 4,
        "batch": 64,
        "single": Fake(comm=0.0),
    }
    return Grid(**{**settings, **values})


class Silent:
    def __init__(self):
        self.told = []

    def start(self, what):
        self.told.append(what)

    def done(self, what):
        self.told.append("done")
