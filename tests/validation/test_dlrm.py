"""A recommendation model kernel by kernel: kernels by hand, limits of the two lanes, tables dealt to ranks."""

from dataclasses import replace

import pytest

from geartrain.errors import UnknownName
from geartrain.validation import dlrm
from geartrain.validation.dlrm import (
    CHIPS,
    FIXED,
    MODELS,
    Chip,
    elementwise,
    exchanged_bytes,
    kernels,
    kernels_error,
    look_up,
    product,
    shard,
    step,
)
from geartrain.workload.spec import Lookup

CHIP = Chip(peak=1e12, memory_rate=1e11, cache_rate=4e11, cache=0, processors=1)


def test_kernels_by_hand():
    assert product(CHIP, 1000, 1000, 1000) == 2e9 / 1e12
    assert product(CHIP, 1, 1000, 1000) == 4 * (1000 + 1000 * 1000 + 1000) / 1e11
    assert elementwise(CHIP, 1e6, 8) == 8e6 / 1e11
    table = Lookup(rows=10**9, width=128, per_sample=8)
    beside = 96 + 32 + 512  # offsets, indices, what comes out; no row is in the cache
    assert look_up(CHIP, [table] * 3, 1000) == pytest.approx(3000 * (beside + 8 * 512) / 1e11, rel=1e-4)
    assert look_up(CHIP, [table] * 3, 1000, backward=True) == pytest.approx(3000 * (beside + 16 * 512) / 1e11, rel=1e-4)
    narrow = replace(table, width=64)
    assert look_up(CHIP, [narrow], 1) == pytest.approx(1.1 * (128 + 256 + 8 * 256) / 1e11, rel=1e-4)


def test_two_lanes():
    model, chip = MODELS["default"], CHIPS["v100"]
    seconds, alone = step(model, chip, 512, host=0.0)
    assert seconds == pytest.approx(alone, rel=1e-12)  # no host: the sum of kernels
    num_kernels = len([*kernels(model, chip, 512)])
    inputs = 4 * 512 * (512 + 8 * 100) / 8.1e9
    times = [time + FIXED for time in kernels(model, chip, 512)]
    assert alone == pytest.approx(inputs + sum(times), rel=1e-12)
    bound, _ = step(model, chip, 512, host=1.0)
    assert bound == pytest.approx(num_kernels + 1 + inputs + times[-1], rel=1e-9)  # the host, and the last kernel


@pytest.mark.parametrize("model", MODELS)
def test_kernels_alone_err_less_with_larger_batches(model):
    given = {"model": model, "chip": "v100", "fitted_samples": 512, "fitted_error": -0.5}
    errors = [kernels_error(samples=samples, **given) for samples in (512, 1024, 2048, 4096)]
    assert errors[0] == pytest.approx(-0.5, rel=1e-6)
    assert errors == sorted(errors) and errors[-1] < 0


def test_sharders():
    tables = [Lookup(rows=10**n, width=8, per_sample=count) for n, count in ((3, 1), (4, 7), (5, 5), (6, 3))]
    assert shard(tables, 2, "naive") == [[tables[0], tables[2]], [tables[1], tables[3]]]
    assert shard(tables, 2, "naive_chunk") == [tables[:2], tables[2:]]
    assert shard(tables, 2, "lookup_greedy") == [[tables[1], tables[0]], [tables[2], tables[3]]]  # 7 + 1 and 5 + 3
    assert shard(tables, 2, "size_greedy")[0] == [tables[3]]  # larger than all others together
    assert sorted(map(len, shard(tables, 3, "size_lookup_greedy"))) == [1, 1, 2]
    with pytest.raises(UnknownName, match="best"):
        shard(tables, 2, "best")


def test_the_fullest_rank_decides_an_exchange():
    table = Lookup(rows=10, width=16, per_sample=1)
    even = [[table], [table], [table], [table]]
    assert exchanged_bytes(even, 400) == 3 * 4 * 100 * 16
    assert exchanged_bytes([[table] * 4, [], [], []], 400) == 3 * 4 * 4 * 100 * 16


def test_unknown_names():
    given = {"samples": 512, "fitted_samples": 512, "fitted_error": -0.5}
    with pytest.raises(UnknownName, match="mlperf"):
        kernels_error(model="mlperf", chip="v100", **given)
    with pytest.raises(UnknownName, match="k80"):
        kernels_error(model="ddp", chip="k80", **given)
    assert set(dlrm.CHIPS) == {"a100", "v100", "gv100"}
