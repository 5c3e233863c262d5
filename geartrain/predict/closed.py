"""A prediction by closed form: the strategy's own account of a step, and what follows from it."""

from __future__ import annotations

from geartrain.cluster.placement import Placement
from geartrain.cost.terms import Cost
from geartrain.errors import ConfigurationError
from geartrain.predict import follows
from geartrain.predict.memory import rank_memory
from geartrain.predict.prediction import Prediction
from geartrain.predict.question import Question
from geartrain.strategies import parse
from geartrain.strategies.closed_forms import share


def predict(question: Question) -> Prediction:
    """What a step takes, by closed form; a ConfigurationError says why it cannot be."""
    place = question.place()
    cost = cost_of(question, place)
    stolen = place.steals * cost.hidden_communication
    compute, step_time = cost.compute + stolen, cost.step_time + stolen
    if step_time <= 0:
        raise ConfigurationError(f"a step of {question} takes no time by {question.model}; give another --compute")
    joules, notes = follows.energy(place, step_time, compute + cost.codec, cost.exposed_communication)
    memory = rank_memory(cost, place)
    workers = cost.sent[: place.num_workers]
    return Prediction(
        question=question,
        how="closed form",
        step_time=step_time,
        compute=compute,
        exposed_communication=cost.exposed_communication,
        wait=cost.wait,
        bubble=cost.bubble,
        codec=cost.codec,
        hidden_communication=cost.hidden_communication,
        bytes_per_rank=sum(traffic.nbytes for traffic in workers) / len(workers),
        messages_per_rank=sum(traffic.messages for traffic in workers) / len(workers),
        busiest=max(traffic.nbytes for traffic in cost.sent),
        memory=memory,
        fits=all(one.fits for one in memory),
        throughput=question.batch / step_time,
        mfu=follows.mfu(question, place, step_time),
        efficiency=efficiency(question, step_time),
        energy=joules,
        price=follows.price(place, step_time),
        notes=(*cost.notes, *notes),
    )


def cost_of(question: Question, place: Placement) -> Cost:
    """The closed form of the strategy, with all decided that depends on the model and the cluster."""
    given = (question.workload, place, question.batch, question.model)
    return question.strategy.planned(*given).cost(*given)


def efficiency(question: Question, step_time: float) -> float:
    """Throughput per worker over that of one worker alone with its share of the batch."""
    samples = share(question.batch, question.ranks, 0)
    alone = parse("single").cost(question.workload, Placement(question.cluster, 1), samples, question.model).step_time
    return (question.batch / step_time / question.ranks) / (samples / alone)
