"""Every method of the table, ended and gone on from its checkpoint: the history is that of the run that never ended."""

import itertools

import pytest
import torch
from torch import nn

from geartrain.cluster.overrides import NodeOverride, Overrides
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import ConfigurationError
from geartrain.record.split import split
from geartrain.runtime.checkpoint import Checkpoints, latest, read_info, whole_record
from geartrain.runtime.loop import Training
from geartrain.runtime.saved_state import read_state
from geartrain.strategies import TABLE, parse
from tests.conformance.cases import VARIANTS, real_engine, variants
from tests.conformance.harness import CLUSTER, planned
from tests.conformance.tasks import Curve

ENGINE = SimulatedEngine(Roofline())
JITTERY = CLUSTER.model_copy(update={"overrides": Overrides(nodes=(NodeOverride(node="all", jitter=0.2),))})


class Noisy(Curve):
    """Draws random numbers in every step."""

    def model(self, seed):
        model = super().model(seed)
        return nn.Sequential(model[0], nn.Dropout(0.2), *model[1:])

    def cuts(self):
        return ("0", "1", "2", "3")


def train(text, folder, steps, *, workers, resume=None, engine=ENGINE, task=None):
    strategy, saved = parse(text), read_info(resume) if resume else None
    main = Training(
        strategy=strategy,
        task=task or Curve(),
        steps=steps,
        batch=12,
        checkpoints=Checkpoints(folder=folder, every=2, resume=resume),
    )
    services = strategy.roles(workers).services
    main = planned(main, JITTERY, workers)
    return whole_record(engine.run(main, JITTERY, workers=workers, services=services), saved)


def weights(folder):
    """All tensors of the last checkpoint, of all ranks."""
    ranks = sorted(latest(folder).glob("rank-*"))
    return [tensor for rank in ranks for tensor in tensors(read_state(rank))]


def tensors(state):
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in tensors(value)]
    return [tensor for value in state for tensor in tensors(value)] if isinstance(state, list | tuple) else []


def history(record):
    """Results of all ranks, and what they did when: to the bit, of all but the names of operations."""
    kept = [{key: value for key, value in result.items() if key != "resumed"} for result in record.results]
    ranks = [(rank.total, rank.steps) for rank in split(record).ranks]
    ops = [sorted(map(plain, log.ops)) for log in record.logs]
    return kept, ranks, ops, record.link_bytes


def plain(op):
    return op.posted, op.done, op.kind, op.lane, op.nbytes, op.messages, op.peers


@pytest.mark.parametrize("text", variants("resume"))
def test_the_resumed_history_is_the_uninterrupted_one(text, tmp_path):
    workers = 3 if text in variants("resume", 3) else 1
    whole = train(text, tmp_path / "whole", 7, workers=workers, task=Noisy())
    train(text, tmp_path / "ended", 5, workers=workers, task=Noisy())
    resumed = train(text, tmp_path / "ended", 7, workers=workers, task=Noisy(), resume=latest(tmp_path / "ended"))
    assert resumed.results[0]["resumed"] == 4
    assert history(resumed) == history(whole)
    mine, other = weights(tmp_path / "ended"), weights(tmp_path / "whole")
    assert len(mine) == len(other) and all(map(torch.equal, mine, other))


def test_a_run_goes_on_twice_and_keeps_the_last_two_checkpoints(tmp_path):
    text = "parameter_server:servers=2"
    whole = train(text, tmp_path / "whole", 9, workers=2)
    train(text, tmp_path / "ended", 3, workers=2)
    train(text, tmp_path / "ended", 7, workers=2, resume=latest(tmp_path / "ended"))
    resumed = train(text, tmp_path / "ended", 9, workers=2, resume=latest(tmp_path / "ended"))
    assert history(resumed) == history(whole)
    assert sorted(path.name for path in (tmp_path / "ended").iterdir()) == ["log", "step-00000006", "step-00000008"]


REGROUPING = [
    name for name, entry in TABLE.items() if entry.kind.needs.regroups and "one_process" not in entry.opt_outs
]


@pytest.mark.parametrize("name", REGROUPING)
def test_another_number_of_workers_goes_on_with_the_same_model(name, tmp_path):
    """The global batches are the same, so only the order of sums differs: as close as one process, see there."""
    for text in VARIANTS[name][:2]:
        whole = train(text, tmp_path / text / "whole", 8, workers=3)
        train(text, tmp_path / text / "ended", 4, workers=2)
        resumed = train(text, tmp_path / text / "ended", 8, workers=3, resume=latest(tmp_path / text / "ended"))
        assert [len(result["losses"]) for result in resumed.results[:3]] == [4, 4, 4]
        for mine, other in zip(resumed.results[:3], whole.results[:3], strict=True):
            assert mine["losses"] == pytest.approx(other["losses"][4:], rel=1e-4)


def test_another_number_of_workers_is_refused_where_it_means_nothing(tmp_path):
    train("single", tmp_path, 2, workers=1)
    strategy = parse("single")
    run = Training(strategy=strategy, task=Curve(), steps=4, batch=12).identity(0)
    with pytest.raises(ConfigurationError, match=r"saved by 1 worker\(s\), and single cannot go on from it with 2"):
        read_info(latest(tmp_path)).check(run, strategy, 2, 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 6}, "batch 12, here 6"),
        ({"seed": 1}, "order of the data 0, here 1"),
        ({"strategy": parse("peer_to_peer")}, "strategy 'synchronous', here 'peer_to_peer'"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(changes, words, tmp_path):
    train("synchronous", tmp_path, 2, workers=2)
    settings = {"strategy": parse("synchronous"), "task": Curve(), "steps": 4, "batch": 12, **changes}
    main = Training(**settings, checkpoints=Checkpoints(folder=tmp_path, resume=latest(tmp_path)))
    with pytest.raises(ConfigurationError, match=words):
        ENGINE.run(main, CLUSTER, workers=2)
    with pytest.raises(ConfigurationError, match="seed 0, here 5"):
        main.check(2, seed=5)


@pytest.mark.multi
@pytest.mark.parametrize("text", ["synchronous:exchange=ring", "parameter_server:servers=2"])
def test_real_processes_go_on(text, tmp_path):
    engine = real_engine()
    simulated = train(text, tmp_path / "simulated", 5, workers=2)
    train(text, tmp_path / "real", 3, workers=2, engine=engine)
    resumed = train(text, tmp_path / "real", 5, workers=2, resume=latest(tmp_path / "real"), engine=engine)
    assert [r.get("losses") for r in resumed.results] == [r.get("losses") for r in simulated.results]
    steps = resumed.logs[0].steps
    assert [mark.step for mark in steps] == [0, 1, 2, 3, 4]
    assert all(before.end <= after.begin for before, after in itertools.pairwise(steps))
