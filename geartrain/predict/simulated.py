"""A prediction by simulation: the strategy itself goes through its motions on shapes, under the virtual clock."""

from __future__ import annotations

from functools import lru_cache

from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import StrategyError
from geartrain.predict import follows
from geartrain.predict.closed import cost_of, efficiency
from geartrain.predict.memory import rank_memory
from geartrain.predict.prediction import Prediction
from geartrain.predict.question import Question
from geartrain.record.log import RunRecord
from geartrain.record.means import WARM_UP, mean_step
from geartrain.record.split import split
from geartrain.runtime.loop import Training
from geartrain.runtime.strategy import check_shapes
from geartrain.tasks.workload_task import WorkloadTask
from geartrain.workload.spec import Workload


def simulate(question: Question, steps: int = 3) -> Prediction:
    """What a step takes, simulated on shapes; StrategyError where shapes do not say what a strategy sends.

    Memory is the closed form's: there are no tensors that could be measured.

    Args:
        steps: the first warms up; more where a strategy repeats itself only after more.
    """
    check_shapes(question.strategy)
    if question.strategy.needs.ordered_model:
        raise StrategyError(
            f"{question.strategy.name} hands the modules of a model to ranks, and shapes alone have none.\n"
            "  leave --simulate out: its closed form goes through the plan event by event; or compare a --task"
        )
    place = question.place()
    record = run_shapes(question, _whole_cycles(steps, question.strategy.cycle))
    mean = mean_step(split(record))
    assert mean is not None, "a run that came to its end has steps"
    cost = cost_of(question, place)
    memory = rank_memory(cost, place)
    joules, notes = follows.energy(place, mean.step_time, mean.compute, mean.exposed_communication)
    waits = ("the simulation has the bubble in its wait",) if cost.bubble else ()
    return Prediction(
        question=question,
        how="simulated",
        step_time=mean.step_time,
        compute=mean.compute - mean.codec,
        exposed_communication=mean.exposed_communication,
        wait=mean.wait,
        bubble=0.0,
        codec=mean.codec,
        hidden_communication=mean.hidden_communication,
        bytes_per_rank=mean.bytes_sent,
        messages_per_rank=mean.messages,
        busiest=_busiest(record),
        memory=memory,
        fits=all(one.fits for one in memory),
        throughput=question.batch / mean.step_time,
        mfu=follows.mfu(question, place, mean.step_time),
        efficiency=efficiency(question, mean.step_time),
        energy=joules,
        price=follows.price(place, mean.step_time),
        notes=(*cost.notes, *notes, *waits),
    )


def run_shapes(question: Question, steps: int) -> RunRecord:
    """The record of a run on shapes alone."""
    given = (question.workload, question.place(), question.batch, question.model)
    training = Training(
        strategy=question.strategy.planned(*given),
        task=_task(question.workload),
        steps=steps,
        batch=question.batch,
        evaluate=False,
    )
    training.check(question.ranks)
    engine = SimulatedEngine(question.model)
    return engine.run(training, question.cluster, workers=question.ranks, services=question.services, meta=True)


@lru_cache(maxsize=8)
def _task(workload: Workload) -> WorkloadTask:
    """One stand-in for each workload: the walks through its layers are recorded once."""
    return WorkloadTask(workload)


def _whole_cycles(steps: int, cycle: int) -> int:
    """At least so many steps, of which those that count are a multiple of a cycle."""
    return WARM_UP + cycle * max(1, -(-(steps - WARM_UP) // cycle))


def _busiest(record: RunRecord) -> float:
    """Bytes per step of the rank that sends most, from when the first step that counts begins to when the last ends."""
    marks = [mark for log in record.logs for mark in log.steps if mark.step >= WARM_UP]
    begin, end = min(mark.begin for mark in marks), max(mark.end for mark in marks)
    num_steps = len({mark.step for mark in marks})
    return max(sum(op.nbytes for op in log.ops if begin <= op.posted < end) for log in record.logs) / num_steps
