"""Dealing: shares of any number of workers put together are the same global batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geartrain.errors import TaskError
from geartrain.tasks.data import DealtBatches, share

DATA = torch.arange(23)


def deal(rank=0, num_workers=1, batch=6, seed=0):
    return DealtBatches(DATA, DATA, rank=rank, num_workers=num_workers, batch=batch, seed=seed)


@given(st.integers(1, 23), st.integers(1, 23), st.integers(0, 3))
def test_shares_make_up_the_global_batch(num_workers, batch, seed):
    num_workers = min(num_workers, batch)
    alone = deal(batch=batch, seed=seed)
    together = [deal(rank, num_workers, batch, seed) for rank in range(num_workers)]
    for _ in range(2 * (23 // batch) + 1):
        whole, parts = alone.take(), [worker.take() for worker in together]
        assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
        assert sum(part.weight for part in parts) == pytest.approx(1.0)  # rounding of n / batch
        assert [part.num_samples for part in parts] == sorted((p.num_samples for p in parts), reverse=True)
        assert whole.weight == 1.0


def test_an_epoch_shows_no_sample_twice_and_the_next_is_shuffled_anew():
    batches = deal()
    first, second = (torch.cat([batches.take().inputs for _ in range(3)]) for _ in range(2))
    assert len(first.unique()) == len(second.unique()) == 18
    assert not torch.equal(first, second)


def test_own_streams_share_an_epoch():
    workers = [deal(rank, 3) for rank in range(3)]
    taken = [[worker.take(count) for count in (5, 2, 1)] for worker in workers]
    assert [batch.weight for batch in taken[0]] == [5 / 6, 2 / 6, 1 / 6]
    shares = [torch.cat([b.inputs for b in batches])[: len(share(23, 3, r))] for r, batches in enumerate(taken)]
    assert torch.equal(torch.cat(shares).sort().values, DATA)


def test_own_stream_goes_on_over_epochs():
    at_once, in_pieces = deal(batch=23), deal(batch=23)
    pieces = [in_pieces.take(count).inputs for count in (23, 20, 7)]
    assert torch.equal(at_once.take(50).inputs, torch.cat(pieces))
    assert torch.equal(pieces[0], deal(batch=23).take().inputs)


@given(st.lists(st.sampled_from([None, 1, 4]), max_size=12), st.integers(0, 2))
def test_state_is_exact(takes, rank):
    batches, other = deal(rank, 3), deal(rank, 3)
    for count in takes:
        batches.take(count)
    other.load_state_dict(batches.state_dict())
    for count in (None, 3, None, 7, None):
        assert torch.equal(batches.take(count).inputs, other.take(count).inputs)


def test_state_of_another_run_is_refused():
    with pytest.raises(TaskError, match="batch 6, here 8"):
        deal(batch=8).load_state_dict(deal().state_dict())


@pytest.mark.parametrize(("num_workers", "batch"), [(4, 3), (1, 24), (1, 0)])
def test_batches_that_cannot_be_dealt(num_workers, batch):
    with pytest.raises(TaskError, match="cannot be dealt"):
        deal(0, num_workers, batch)


def test_taking_nothing_is_refused():
    with pytest.raises(TaskError, match="at least one sample"):
        deal().take(0)
