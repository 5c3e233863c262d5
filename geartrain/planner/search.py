"""The search for a plan: batch, then workers, then methods and their settings; the best few are simulated.

    batch     of synchronous training: the smallest that fits and is close to the best throughput, with and without
              blocks that are computed again; then the smallest that is close for the best method
    workers   all of them, or as many as have the wanted efficiency, where lemma 1 says to begin; or fewer, if that is
              faster
    methods   each that trains as synchronous does, from its defaults, one setting after another at its best value;
              of servers, the number of lemma 2 and its neighbours; each method at every batch of the first step
    best      by seconds per sample, times the steps that a method needs where they were measured; methods that change
              what is learned are asked with all workers, too

Source: Zou and others, 2017, arXiv 1709.06622, procedure of the planner; the search over methods is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from geartrain.errors import ConfigurationError
from geartrain.planner import confirm, fit, lemmas, notes, space, why
from geartrain.planner.ask import AS_GIVEN, Ask, Candidate, Plan
from geartrain.planner.batch import CLOSE, BatchPlan, batch_plans, reference, tightest, worth_trying
from geartrain.planner.predictor import Predictor, Told
from geartrain.runtime.strategy import Strategy
from geartrain.strategies import parse

_GAIN = 1.01
"""Ratio of throughputs from which on fewer workers count as faster."""


def plan(ask: Ask, told: Told = lambda what: None) -> Plan:
    """The best way to train; CannotFit where none has room in memory, ConfigurationError where none can be at all.

    Args:
        told: is told what is predicted or simulated next.
    """
    predict = Predictor(ask, told)
    tried = batch_plans(predict, ask.ranks)
    found = search(predict, ask.ranks, worth_trying(tried))
    if not found:
        raise fit.cannot_fit(predict)
    most, ranks = found[0], _workers(predict, found[0])
    if ranks != ask.ranks:
        tried = batch_plans(predict, ranks)
        found = search(predict, ranks, worth_trying(tried))
    found = _with_smaller_batch(predict, found, tried)
    changed = [*_changed(predict, found[0]), *(_changed(predict, most) if ranks != ask.ranks else ())]
    measured = [one for one in changed if str(one.strategy) in _factors(ask)]
    ranked = sorted([*found, *measured], key=lambda one: one.score)
    ranked = confirm.confirmed(ranked, predict, told)
    best = ranked[0]
    return Plan(
        ask=ask,
        best=best,
        runners_up=tuple(ranked[1:]),
        faster=tuple(_faster(changed, best, measured)),
        why=tuple(why.lost(best, one) for one in ranked[1:]),
        rejected=tuple(predict.rejected.items()),
        notes=tuple(notes.notes(predict, best, most, tried)),
    )


def search(predict: Predictor, ranks: int, batches: Sequence[BatchPlan]) -> list[Candidate]:
    """The best candidate of each method that trains as synchronous does, the best first; only those that fit."""
    for name, reason in (*space.NEEDS_MORE.items(), *space.OWN_SAMPLES.items()):
        predict.reject(name, reason)
    places = [(one.batch, one.checkpointing) for one in batches] or _smallest(predict.ask, ranks)
    return _search_at(predict, ranks, places)


def _search_at(predict: Predictor, ranks: int, places: Sequence[tuple[int, str]]) -> list[Candidate]:
    """`search` at (batch, checkpointing)."""
    found = []
    for start in space.starts(ranks, predict.ask.workload):
        ways = (_refined(predict, start, ranks, *place) for place in places)
        mine = [one for one in ways if one is not None]
        if mine:
            found.append(min(mine, key=lambda one: one.score))
    return sorted(found, key=lambda one: one.score)


def _with_smaller_batch(predict: Predictor, found: list[Candidate], tried: Sequence[BatchPlan]) -> list[Candidate]:
    """All again with the smallest batch at which the best method comes close to what it reaches, if that is smaller."""
    best = found[0]
    for one in tried:
        if one.batch >= best.batch:
            break
        smaller = _refined(predict, best.strategy, best.ranks, one.batch, one.checkpointing)
        if smaller is None or smaller.closed.efficiency < min(predict.ask.efficiency, best.closed.efficiency):
            continue
        if smaller.closed.throughput >= CLOSE * best.closed.throughput:
            return _search_at(predict, best.ranks, [(one.batch, one.checkpointing)])
    return found


def _smallest(ask: Ask, ranks: int) -> list[tuple[int, str]]:
    """Where synchronous training does not fit: one sample for each worker, or the batch that was given."""
    return [(ask.batch or ranks, checkpointing) for checkpointing in (AS_GIVEN, *(["blocks"] if ask.recompute else []))]


def _refined(predict: Predictor, start: Strategy, ranks: int, batch: int, checkpointing: str) -> Candidate | None:
    """A method with one setting after another at its best value; None where nothing of it fits."""
    best = _candidate(predict, start, ranks, batch, checkpointing)
    for setting, values in space.SPACE[start.name].items():
        if setting == "servers":
            values = _servers(predict, ranks, batch, checkpointing)
        tried = _neighbours(predict, best.strategy if best else start, setting, values)
        ways = [_candidate(predict, one, ranks, batch, checkpointing) for one in tried]
        fitting = [one for one in (best, *ways) if one is not None]
        best = min(fitting, key=lambda one: one.score, default=None)
    return best


def _neighbours(predict: Predictor, strategy: Strategy, setting: str, values: Sequence[str]) -> Iterator[Strategy]:
    for value in values:
        try:
            yield from space.neighbours(strategy, setting, [value])
        except ConfigurationError as error:
            predict.reject(f"{strategy} with {setting}={value}", str(error).splitlines()[0])


def _servers(predict: Predictor, ranks: int, batch: int, checkpointing: str) -> list[str]:
    """Numbers of servers: that of lemma 2, its neighbours, one, and one beside each worker."""
    bound = notes.servers(predict, ranks, batch, checkpointing)
    counts = {1, ranks, *((bound - 1, bound, bound + 1) if bound else ())}
    return [str(count) for count in sorted(counts) if 1 <= count <= 2 * ranks]


def _candidate(
    predict: Predictor, strategy: Strategy, ranks: int, batch: int, checkpointing: str, factor: float = 1.0
) -> Candidate | None:
    """A candidate, if it can be and fits."""
    prediction = predict(strategy, ranks, batch, checkpointing)
    if prediction is None:
        return None
    if not prediction.fits:
        predict.reject(strategy, fit.needs(tightest(prediction)))
        return None
    return Candidate(closed=prediction, checkpointing=checkpointing, steps_factor=factor)


def _workers(predict: Predictor, best: Candidate) -> int:
    """How many workers to take, by what the best method has with all of them."""
    ask = predict.ask
    if ask.efficiency and best.closed.efficiency < ask.efficiency:
        return _efficient(predict, best)
    most, throughput = best.ranks, best.closed.throughput
    for count in _fewer(ask):
        found = _with_workers(predict, best, count)
        if found is not None and found.closed.throughput > throughput * _GAIN:
            most, throughput = count, found.closed.throughput
    return most


def _efficient(predict: Predictor, best: Candidate) -> int:
    """The most workers with the wanted efficiency, among lemma 1's number, its neighbours and powers of two."""
    ask = predict.ask
    guess = lemmas.devices_for(ask.efficiency, notes.overhead(best.closed), best.ranks)
    counts = {1, guess - 1, guess, guess + 1, *_fewer(ask)}
    for count in sorted((count for count in counts if 1 <= count < ask.ranks), reverse=True):
        found = _with_workers(predict, best, count)
        if found is not None and found.closed.efficiency >= ask.efficiency:
            return count
    raise ConfigurationError(
        f"{best.ranks} workers are {best.closed.efficiency:.0%} efficient at most, and what fewer would need for "
        f"{ask.efficiency:.0%} does not fit: ask for less efficiency, or for a smaller batch"
    )


def _with_workers(predict: Predictor, best: Candidate, ranks: int) -> Candidate | None:
    """The candidate with another number of workers: with a batch of its own each keeps its samples."""
    ask = predict.ask
    batch = ask.batch or best.batch * ranks // best.ranks
    strategy = best.strategy if ranks > 1 else reference(1)
    return _candidate(predict, strategy, ranks, batch, best.checkpointing) if batch >= ranks else None


def _fewer(ask: Ask) -> list[int]:
    """Powers of two below the number of workers."""
    return [2**power for power in range(ask.ranks.bit_length()) if 2**power < ask.ranks]


def _factors(ask: Ask) -> dict[str, float]:
    return dict(ask.statistics.factors) if ask.statistics else {}


def _changed(predict: Predictor, best: Candidate) -> list[Candidate]:
    """The methods that change what is learned, where one of the others stands: as measured, or at defaults."""
    factors = _factors(predict.ask)
    known = [text for text in factors if parse(text).name in space.changes_learning()]
    texts = dict.fromkeys([*known, *space.changes_learning()]) if best.ranks > 1 else {}
    if predict.ask.statistics:
        for text, steps in predict.ask.statistics.unreached.items():
            predict.reject(text, f"it did not come to the target within {steps} steps")
            texts.pop(text, None)
    found = (
        _candidate(predict, parse(text), best.ranks, best.batch, best.checkpointing, factors.get(text, 1.0))
        for text in texts
    )
    wanted = predict.ask.efficiency
    return [one for one in found if one is not None and (not wanted or one.closed.efficiency >= wanted)]


def _faster(changed: Sequence[Candidate], best: Candidate, measured: Sequence[Candidate]) -> list[Candidate]:
    """Those with less time for a sample whose number of steps is unknown, the fastest first, each once."""
    unknown = [one for one in changed if one not in measured and one.score < best.score]
    found = dict[str, Candidate]()
    for one in sorted(unknown, key=lambda one: one.score):
        found.setdefault(str(one.strategy), one)
    return list(found.values())
