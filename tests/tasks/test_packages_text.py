"""Packages' text: bags against the file, sums against matrix products, sparse as dense, the reference result."""

import numpy as np
import pytest
import torch

from geartrain.runtime.tracing import task_workload
from geartrain.tasks.packages_text import _FILE, PackagesText, WordSum, _packages, _part

TASK = PackagesText()


def train(task, steps):
    model = task.model(0)
    optimizer, batches = task.optimizer(model.parameters()), task.batches(0, 1, 64, 0)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(model, batches.take()).backward()
        optimizer.step()
    return model


def test_bags_are_the_rows_of_the_file():
    bags, section, split = _packages()
    assert bags.shape == (63_681, 2, 24) and section.max() == 57
    assert split.bincount().tolist() == [44_722, 6_202, 12_757]
    with np.load(_FILE) as data:
        starts, words, counts = data["indptr"], data["indices"], data["counts"]
        lengths = np.diff(starts)
    for package in (0, 1000, int(lengths.argmin()), int(lengths.argmax())):
        kept = min(int(lengths[package]), 24)
        first = starts[package]
        assert bags[package, 0].tolist() == [*words[first : first + kept].tolist(), *[3627] * (24 - kept)]
        assert bags[package, 1].tolist() == [*counts[first : first + kept].tolist(), *[0] * (24 - kept)]
    assert (lengths > 24).sum() == 6


def test_parts_do_not_overlap():
    assert [len(_part(which)[0]) for which in (0, 2)] == [44_722, 12_757]


def test_a_sum_of_words_is_a_matrix_product():
    layer = WordSum(5, 3, sparse=False)
    bags = torch.tensor([[[0, 4, 5], [2, 1, 0]], [[5, 5, 5], [0, 0, 0]]])
    matrix = torch.tensor([[2.0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]])
    torch.testing.assert_close(layer(bags), matrix @ layer.words.weight + layer.bias)


def test_cuts_make_up_the_model():
    model, out = TASK.model(0), _part(2)[0][:5]
    expected = model(out)
    for name in TASK.cuts():
        out = model.get_submodule(name)(out)
    assert torch.equal(out, expected)
    assert sum(p.numel() for p in model.parameters()) == 471_994


def test_sparse_gradients_train_the_same():
    with torch.sparse.check_sparse_tensor_invariants():  # said explicitly, or torch warns that nothing was said
        sparse = train(PackagesText(sparse=True), 4)
    assert sparse.words.words.weight.grad.is_sparse
    for one, other in zip(sparse.parameters(), train(TASK, 4).parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_traced_it_is_the_same_model():
    workload = task_workload(TASK)
    assert workload.num_parameters == 471_994 and workload.optimizer_state == 1
    assert {layer.name for layer in workload.layers} >= {"words.words", "relu", "head", "(loss)"}


def test_reference_result():
    model = train(TASK, 300)
    # Measured 0.677; a package is 0.0001, and other processors add up in another order.
    assert TASK.metric(model)["accuracy"] == pytest.approx(0.677, abs=0.01)
    assert model.training and TASK.metric(model.to("meta")) == {}
