"""Gradients in flat buckets: dealt, counted, handed over, let go."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from geartrain.runtime.backward import backward, is_poisoned, witness_of
from geartrain.runtime.buckets import (
    GradientBuckets,
    Layout,
    bucket_layouts,
    deal,
    even_cuts,
    flat_parameters,
    trainable,
)
from geartrain.runtime.worker import Batch


class Awkward(nn.Module):
    """first and last are tied; `spare` is never used; `fixed` is frozen."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.spare = nn.ParameterList([torch.ones(2)])
        self.fixed = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)
        self.middle = nn.Linear(3, 3)
        self.last = nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight

    def forward(self, inputs):
        return self.last(self.middle(self.first(inputs) * self.fixed).tanh())


def gradients(model):
    """What autograd gives without buckets; zero where it gives nothing."""
    model.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in trainable(model)]
    model.zero_grad()
    return found


def collect(model, limit, *, overlap, in_order=True):
    """Buckets that note when they were handed over: (index, whether backward had ended)."""
    handed, ended = [], []
    buckets = GradientBuckets(
        bucket_layouts(trainable(model), limit),
        lambda bucket: handed.append((bucket.index, bool(ended))),
        overlap=overlap,
        in_order=in_order,
    )
    buckets.begin()
    model(torch.ones(2, 3)).sum().backward()
    ended.append(True)
    buckets.flush()
    return buckets, handed


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from("ab"))), st.none() | st.integers(1, 60))
def test_dealing_keeps_kinds_apart_and_closes_full_buckets(tensors, limit):
    sizes, kinds = [size for size, _ in tensors], [kind for _, kind in tensors]
    dealt = deal(sizes, kinds, limit)
    assert sorted(index for bucket in dealt for index in bucket) == list(range(len(tensors)))
    for bucket in dealt:
        assert bucket == sorted(bucket, reverse=True)
        assert len({kinds[index] for index in bucket}) == 1
        assert limit is None or sum(sizes[index] for index in bucket[:-1]) < limit
    for kind in set(kinds):
        *full, _ = [bucket for bucket in dealt if kinds[bucket[0]] == kind]
        assert all(limit is not None and sum(sizes[index] for index in bucket) >= limit for bucket in full)
    if limit is None:
        assert len(dealt) == len(set(kinds))


def test_dealing_in_reverse_order():
    assert deal([4, 4, 4, 9, 4], "aaaaa", 8) == [[4, 3], [2, 1], [0]]
    assert deal([4, 4, 4], "aba", None) == [[2, 0], [1]]


@given(st.integers(0, 100), st.integers(1, 20))
def test_even_cuts_lose_nothing(numel, count):
    cuts = even_cuts(numel, count)
    sizes = [end - begin for begin, end in pairwise(cuts)]
    assert sum(sizes) == numel and max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("limit", [None, 1, 40, 60])
@pytest.mark.parametrize("overlap", [False, True])
def test_gradients_are_those_of_autograd_in_place(limit, overlap):
    model = Awkward()
    expected = gradients(model)
    buckets, handed = collect(model, limit, overlap=overlap)
    flats = {flat.untyped_storage().data_ptr() for flat in buckets.flats}
    for parameter, gradient in zip(trainable(model), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)
        assert parameter.grad.untyped_storage().data_ptr() in flats
    assert sum(flat.numel() for flat in buckets.flats) == sum(p.numel() for p in trainable(model))
    assert [index for index, _ in handed] == list(range(len(buckets.buckets)))
    assert model.fixed.grad is None


def test_with_overlap_all_but_the_unused_go_during_backward_in_order():
    # Buckets from the end: middle.bias, middle.weight, spare, first.weight. The unused one holds up those after it.
    assert collect(Awkward(), 1, overlap=True)[1] == [(0, False), (1, False), (2, True), (3, True)]
    # Without an order only the unused one waits.
    assert collect(Awkward(), 1, overlap=True, in_order=False)[1] == [(0, False), (1, False), (3, False), (2, True)]
    assert collect(Awkward(), 1, overlap=False)[1] == [(0, True), (1, True), (2, True), (3, True)]


def test_a_second_step_starts_from_zero():
    model = Awkward()
    expected = gradients(model)
    buckets, _ = collect(model, None, overlap=True)
    buckets.begin()
    model(torch.ones(2, 3)).sum().backward()
    buckets.flush()
    assert torch.equal(model.first.weight.grad, expected[0])


def test_cuts_through_tensors():
    model = Awkward()
    expected = torch.cat([gradient.view(-1) for gradient in gradients(model)])
    parameters = tuple(trainable(model))
    numel = len(expected)
    handed = []
    layout = Layout(parameters, (*even_cuts(numel, 5), numel))  # the last one is empty
    buckets = GradientBuckets([layout], handed.append, overlap=True, in_order=False)
    buckets.begin()
    model(torch.ones(2, 3)).sum().backward()
    buckets.flush()
    assert sorted(bucket.index for bucket in handed) == [0, 1, 2, 3, 4, 5]
    assert torch.equal(torch.cat([bucket.flat for bucket in buckets.buckets]), expected)


def test_nothing_is_left_after_close():
    model = Awkward()
    buckets, handed = collect(model, 40, overlap=True)
    buckets.close()
    assert all(p.grad is None and not p._post_accumulate_grad_hooks for p in model.parameters())
    count = len(handed)
    model(torch.ones(2, 3)).sum().backward()
    assert len(handed) == count and model.first.weight.grad is not None


def test_flat_parameters_are_the_parameters():
    model = Awkward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    output = model(torch.ones(2, 3))
    layout = Layout(tuple(trainable(model)), even_cuts(sum(p.numel() for p in trainable(model)), 2))
    flat = flat_parameters(layout)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(model(torch.ones(2, 3)), output)
    assert model.last.weight is model.first.weight
    flat.zero_()
    assert all(not parameter.any() for parameter in trainable(model))


def test_two_data_types_lie_in_two_buckets():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    layouts = bucket_layouts(trainable(model), None)
    assert [{p.dtype for p in layout.parameters} for layout in layouts] == [{torch.float64}, {torch.float32}]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf"), 3.0])
def test_a_loss_that_is_not_finite_reaches_the_gradients(loss):
    class OneLoss:
        def loss(self, model, batch):
            return model(batch.inputs).sum() * 0 + loss  # its gradients are finite whatever it is

    model = Awkward()
    buckets = GradientBuckets(bucket_layouts(trainable(model), None), lambda bucket: None, overlap=True)
    backward(OneLoss(), model, Batch(torch.ones(2, 3), torch.ones(2), 1.0), buckets, witness_of(model))
    torch.optim.SGD(trainable(model), lr=0.1).step()
    assert is_poisoned(witness_of(model)) == (loss != 3.0)
