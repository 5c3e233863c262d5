"""Runs a strategy on an engine and brings home what the checks look at."""

import copy
from dataclasses import dataclass, replace
from typing import Any

from geartrain.cluster import Cluster
from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.cost.terms import Traffic
from geartrain.engines.base import Engine
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Strategy
from geartrain.runtime.tracing import task_workload
from geartrain.runtime.worker import Service, Task

CLUSTER = load_cluster("ethernet-10g")


@dataclass(frozen=True)
class Steps:
    """`main(ctx)`: steps, from a saved state if one is given; returns losses, weights and the state to go on from."""

    strategy: Strategy
    task: Task
    steps: int
    batch: int
    states: tuple[Any, ...] | None = None

    def __call__(self, ctx: Context) -> dict[str, Any]:
        part = self.strategy.bind(ctx, self.task)
        state = None if self.states is None else self.states[ctx.rank]
        if isinstance(part, Service):
            if state is not None:
                part.load_state_dict(state)
            part.run()
            return {"state": copy.deepcopy(part.state_dict())}
        batches = self.task.batches(*self.strategy.deal(ctx.rank, ctx.num_workers), self.batch, seed=3)
        if state is not None:
            part.load_state_dict(state[0])
            batches.load_state_dict(state[1])
        losses = []
        for step in range(self.steps):
            ctx.mark_step(step, "begin")
            result = part.step(batches)
            ctx.mark_step(step, "end", loss=result.loss, samples=result.samples)
            losses.append(result.loss)
        state = copy.deepcopy((part.state_dict(), batches.state_dict()))  # with whatever is in flight
        part.finish()
        part.close()
        parameters = list(part.model.parameters())
        return {
            "losses": losses,
            "weights": [] if ctx.meta else [p.detach().clone() for p in parameters],
            "state": state,
            "hooks": sum(len(p._post_accumulate_grad_hooks or ()) for p in parameters),
            "gradients": sum(p.grad is not None for p in parameters),
        }


def planned(main: Any, cluster: Cluster, workers: int) -> Any:
    """The same with all decided that depends on the model and the cluster, where anything does."""
    if not main.strategy.needs.ordered_model:
        return main
    place = Placement(cluster, workers, main.strategy.roles(workers).services)
    return replace(main, strategy=main.strategy.planned(task_workload(main.task), place, main.batch))


def run(engine: Engine, main: Any, workers: int, *, seed: int = 0, meta: bool = False) -> RunRecord:
    services = main.strategy.roles(workers).services
    main = planned(main, CLUSTER, workers)
    return engine.run(main, CLUSTER, workers=workers, services=services, seed=seed, meta=meta)


def train(engine: Engine, strategy: Strategy, task: Task, workers: int, *, steps: int = 4, batch: int = 8) -> list[Any]:
    """What each rank returned."""
    return run(engine, Steps(strategy, task, steps, batch), workers).results


def resume(engine: Engine, strategy: Strategy, task: Task, workers: int, *, steps: int, saved: list[Any]) -> list[Any]:
    """`train` for some more steps from the states in an earlier result."""
    main = Steps(strategy, task, steps, 8, tuple(result["state"] for result in saved))
    return run(engine, main, workers).results


def plain_loop(task: Task, *, steps: int, batch: int) -> list[Any]:
    """The weights after a loop that knows nothing of geartrain."""
    model = task.model(0)
    optimizer = task.optimizer([p for p in model.parameters() if p.requires_grad])
    batches = task.batches(0, 1, batch, seed=3)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(model, batches.take()).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def sent_per_step(record: RunRecord, steps: int, skip: int = 0) -> list[Traffic]:
    """What each rank sent per step, from the begin of step `skip` to the end of the last one.

    The one element with which a worker ends a service is outside steps. Of a service that marks no steps counts what it
    sent while any worker was within them.
    """
    marked = [log.steps for log in record.logs if log.steps]
    around = min(marks[skip].begin for marks in marked), max(marks[-1].end for marks in marked)
    traffic = []
    for log in record.logs:
        begin, end = (log.steps[skip].begin, log.steps[-1].end) if log.steps else around
        ops = [op for op in log.ops if begin <= op.posted < end]
        total = Traffic(nbytes=sum(op.nbytes for op in ops), messages=sum(op.messages for op in ops))
        traffic.append(total.per(steps - skip))
    return traffic


def predicted(strategy: Strategy, task: Task, workers: int, batch: int = 8) -> tuple[Traffic, ...]:
    place = Placement(CLUSTER, workers, strategy.roles(workers).services)
    return strategy.cost(task_workload(task), place, batch).sent
