"""Ranks as processes: what they compute together, what the context gives them, what the log says."""

import time

import pytest
import torch

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import ServicePlace
from geartrain.engines.real import RealEngine
from geartrain.errors import ConfigurationError, PlacementError
from geartrain.record.log import RunRecord
from geartrain.runtime.seeding import stream_seed
from tests.engines import programs

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("processes")]


def run(main, workers: int = 2, services: int = 0, **options) -> RunRecord:
    places = [ServicePlace("server")] * services
    return RealEngine().run(main, load_cluster("ethernet-1g"), workers=workers, services=places, **options)


def test_collectives_compute_and_are_recorded():
    record = run(programs.collectives, 3)
    got = record.results
    whole = [torch.arange(12.0) + rank for rank in range(3)]
    total, gathered = sum(whole), torch.cat([tensor[:4] for tensor in whole]).tolist()
    for rank in range(3):
        share = slice(4 * rank, 4 * rank + 4)
        assert got[rank]["all_reduce"] == total.tolist()
        assert got[rank]["broadcast"] == whole[1].tolist()
        assert got[rank]["all_gather"] == gathered
        assert got[rank]["scatter"] == whole[0][share].tolist()
        assert got[rank]["reduce_scatter"] == total[share].tolist()
        assert got[rank]["all_to_all"] == torch.cat([tensor[share] for tensor in whole]).tolist()
    assert got[0]["reduce"] == total.tolist()
    assert got[1]["gather"] == gathered
    # 48 bytes among three ranks, shares of 16: what gloo's algorithm sends, by rank.
    expected = {
        "all_reduce": [64, 64, 64],  # ring: 2 (n - 1) shares
        "broadcast": [0, 96, 0],  # tree from rank 1, one level
        "reduce": [32, 48, 48],  # ring of shares, then the shares to the root
        "all_gather": [32, 32, 32],
        "gather": [16, 0, 16],
        "scatter": [32, 0, 0],
        "reduce_scatter": [64, 64, 64],  # gloo does an all-reduce
        "all_to_all": [32, 32, 32],
        "barrier": [0, 0, 0],
    }
    sizes = {kind: [op.nbytes for log in record.logs for op in log.ops if op.kind == kind] for kind in expected}
    assert sizes == expected
    keys = [[op.key for op in log.ops] for log in record.logs]
    assert keys[0] == keys[1] == keys[2] == [(keys[0][0][0], "c", n) for n in range(len(expected))]
    for log in record.logs:
        assert all(op.size == (0 if op.kind == "barrier" else 48) and op.peers == (0, 1, 2) for op in log.ops)
        assert all(0 <= op.posted <= op.done <= log.end for op in log.ops)
        assert [blocked.key for blocked in log.blocked] == [op.key for op in log.ops]
        assert all(blocked.begin <= blocked.end <= log.end for blocked in log.blocked)


def test_messages_have_the_same_key_on_both_sides():
    record = run(programs.messages)
    assert record.results == [[3.0] * 3, [2.0] * 3]
    (first, second), (group, *_) = [log.ops for log in record.logs], record.logs[0].ops[0].key
    expected = [(group, "p", 0, 1, 7, 0), (group, "p", 0, 1, 7, 1), (group, "p", 1, 0, 0, 0)]
    assert [op.key for op in first] == [op.key for op in second] == expected
    assert [op.kind for op in first] == ["send", "send", "recv"]
    assert [(op.nbytes, op.messages) for op in first] == [(12, 1), (12, 1), (0, 0)]
    assert [op.peers for op in second] == [(0, 1), (0, 1), (1, 0)]
    assert all(op.done >= op.posted for op in first + second)


def test_default_world_has_the_workers_only():
    record = run(programs.worlds, 2, 1)
    assert record.results == [
        (2, 3, 3, [2.0], "worker"),
        (2, 3, 3, [1.0], "worker"),
        (None, 3, 3, [2.0], "server"),
    ]
    assert [log.role for log in record.logs] == ["worker", "worker", "server"]
    assert record.engine == "real" and not record.virtual and record.interrupted is None


@pytest.mark.parametrize("view", [False, True])
def test_ddp_is_bit_for_bit_what_it_is_without_recording(view):
    recorded, plain = run(programs.Train(False, view)), run(programs.Train(True, view))
    for (losses, state, _), (plain_losses, plain_state, _) in zip(recorded.results, plain.results, strict=True):
        assert losses == plain_losses
        assert all(torch.equal(state[name], plain_state[name]) for name in plain_state)
    log = recorded.logs[0]
    reduces = [op for op in log.ops if op.kind == "all_reduce"]
    in_steps = [op for op in reduces if log.steps[1].begin <= op.posted <= log.steps[-1].end]
    # Once buckets are rebuilt, each step reduces every parameter once; two ranks send half of it twice.
    each_step = sum(op.nbytes for op in in_steps) / 4
    assert each_step == 4 * sum(tensor.numel() for tensor in recorded.results[0][1].values())
    assert all(op.done >= op.posted for op in in_steps)
    assert any(blocked.key == op.key and blocked.begin > op.posted for op in in_steps for blocked in log.blocked)
    assert [mark.values["loss"] for mark in log.steps] == recorded.results[0][0]


def test_a_deadline_ends_the_wait_and_loses_nothing():
    record = run(programs.deadlines)
    assert record.results[0] == ["late", None, 1, 1.0, 2.0, 3.0, 0, "from a lane"]
    lanes = {op.lane for op in record.logs[0].ops}
    assert lanes == {"", "receiver-0"}
    assert {blocked.what for blocked in record.logs[0].blocked if blocked.key is None} >= {"queue", "any"}


def test_receive_from_any_source():
    record = run(programs.any_source, 2, 1)
    *workers, server = record.results
    assert workers == [[(2, 100.0), (2, 101.0)], [(2, 110.0), (2, 111.0)]]
    assert sorted(server) == [(0, 0.0), (0, 1.0), (1, 10.0), (1, 11.0)]
    sent = {op.key for log in record.logs[:2] for op in log.ops if op.kind == "send"}
    received = {op.key for op in record.logs[2].ops if op.kind == "recv"}
    assert sent == received and len(sent) == 4


def test_streams_shared_memory_and_trace():
    record = run(programs.streams, seed=5)
    for rank, (values, same, shared) in enumerate(record.results):
        expected = [torch.Generator().manual_seed(stream_seed(5, rank, purpose)) for purpose in ("a", "b")]
        assert values == [int(torch.randint(1 << 30, (1,), generator=rng)) for rng in expected]
        assert same and shared
    assert record.logs[0].counts == {"things": 5.0}
    assert [span.name for span in record.logs[0].spans] == ["work"]


def test_later_runs_start_fast():
    begun = time.monotonic()
    run(programs.streams)
    assert time.monotonic() - begun < 5  # 0.3 s on an idle host; a fresh PyTorch per rank takes longer than this


def test_what_is_refused():
    with pytest.raises(ConfigurationError, match="simulated engine"):
        run(programs.streams, meta=True)
    with pytest.raises(ConfigurationError, match="top of a module"):
        run(lambda ctx: None)
    with pytest.raises(PlacementError):
        run(programs.streams, 0)
