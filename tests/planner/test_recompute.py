"""Which blocks are computed again: budgets worked out by hand."""

import dataclasses

import pytest

from geartrain.cost.compute import ROOFLINE
from geartrain.errors import ConfigurationError, UnknownName
from geartrain.models.settings import split
from geartrain.planner import batch
from geartrain.planner.predictor import Predictor
from geartrain.planner.recompute import SPARE, in_words, recompute_choices, to_recompute
from geartrain.predict.memory import RankMemory
from geartrain.workload.choices import checkpointed
from tests.planner import made

DEVICE = made.cluster().nodes[0].device


def memory(total, limit):
    return RankMemory(rank=0, role="worker", kinds={}, total=total, limit=limit, fits=total <= limit)


def test_a_block_is_its_input_and_its_forward_pass():
    (keep, again), *others = recompute_choices(made.blocks(), 3, DEVICE, ROOFLINE)
    assert (keep.seconds, keep.memory) == (0.0, 3 * 64 * made.MIB)
    assert again.memory == 3 * 16 * made.MIB
    assert again.seconds == pytest.approx(3 * 1.1e9 / 1e12, rel=1e-6)
    assert others == [(keep, again)] * 3


@pytest.mark.parametrize(("missing", "text"), [(0.5, "0-1"), (1.4, "0-2"), (2.2, "blocks")])
def test_as_few_blocks_as_make_room(missing, text):
    """A block frees three quarters of 64 MiB, and one of 64 MiB lives in full while it is computed again."""
    block, limit = 64 * made.MIB, made.GIB
    total = round(limit * (1 - SPARE) + missing * block) - block // 4
    assert to_recompute(made.blocks(), 1, DEVICE, ROOFLINE, memory(total, limit)) == text


def test_no_choice_is_enough():
    assert to_recompute(made.blocks(), 1, DEVICE, ROOFLINE, memory(2 * made.GIB, made.GIB)) is None
    flat = dataclasses.replace(made.blocks(), layers=made.blocks().layers[-1:])
    assert to_recompute(flat, 1, DEVICE, ROOFLINE, memory(2 * made.GIB, made.GIB)) is None


def test_places_in_words():
    assert in_words([], 4) == ""
    assert in_words([0, 1, 2, 5, 7, 8], 9) == "0-2+5+7-8"
    assert in_words([0, 1, 2], 3) == "blocks"


def test_batches_grow_until_all_blocks_are_computed_again():
    """48 MiB of parameters and what belongs to them; a sample keeps 256 MiB, or 64 MiB of inputs. The device: 1 GiB."""
    plans = batch.batch_plans(Predictor(made.ask(recompute=True)), 4)
    kept = [plan.samples for plan in plans if not plan.checkpointing]
    again = [(plan.samples, plan.checkpointing) for plan in plans if plan.checkpointing]
    assert kept == [1, 2, 3]
    assert [samples for samples, _ in again] == [4, 6, 8, 12]  # 16 have 1 GiB of inputs
    assert again[-1][1] == "blocks"
    assert all(plan.prediction.fits for plan in plans)
    # What is computed again takes time: more of it at each larger batch.
    compute = [plan.prediction.compute / plan.samples for plan in plans]
    assert compute[-1] > compute[3] > compute[0] * 1.01


def test_without_the_choice_batches_end_where_all_is_kept():
    plans = batch.batch_plans(Predictor(made.ask()), 4)
    assert [(plan.samples, plan.checkpointing) for plan in plans] == [(1, ""), (2, ""), (3, "")]


def test_the_smallest_batch_close_to_the_best():
    plans = batch.batch_plans(Predictor(made.ask(cluster=made.cluster("1000 Gbit/s"))), 4)
    assert [plan.samples for plan in batch.worth_trying(plans)] == [1]  # nothing to gain: the wires cost nothing
    slow = batch.batch_plans(Predictor(made.ask(cluster=made.cluster("1 Gbit/s"))), 4)
    assert [plan.samples for plan in batch.worth_trying(slow)] == [3]


def test_some_blocks_by_their_numbers():
    base = made.blocks()
    some, every = checkpointed(base, "0+2-3"), checkpointed(base, "blocks")
    assert some.layers[:2] == every.layers[:2]
    assert some.layers[2:4] == base.layers[2:4]
    assert some.layers[4:8] == every.layers[4:8]
    assert checkpointed(base, "0-3").layers == every.layers
    with pytest.raises(ConfigurationError, match=r"made has 4 block\(s\), counted from 0"):
        checkpointed(base, "2-4")
    with pytest.raises(UnknownName):
        checkpointed(base, "0-")


def test_the_numbers_are_a_setting_of_a_workload():
    assert split("gpt2:checkpointing=0-3+7,length=512")[1].checkpointing == "0-3+7"
    with pytest.raises(UnknownName):
        split("gpt2:checkpointing=some")
