"""Sums in a fixed order, and shards that lose nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geartrain.runtime.shards import add_in_order, deal_tensors, shard_sizes


@pytest.mark.parametrize("into", [0, 1, 2, 3])
def test_the_order_is_the_same_whoever_sums(into):
    parts = [torch.tensor([value]) for value in (1e8, 1.0, -1e8, 1.0)]  # any other order gives another sum
    expected = ((parts[0] + parts[1]) + parts[2]) + parts[3]
    add_in_order(parts, into)
    assert torch.equal(parts[into], expected)


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 8))
def test_shards_hold_everything_once(numels, count):
    assert sum(shard_sizes(numels, count, "even")) == sum(shard_sizes(numels, count, "tensors")) == sum(numels)
    dealt = deal_tensors(len(numels), count)
    assert sorted(index for shard in dealt for index in shard) == list(range(len(numels)))
