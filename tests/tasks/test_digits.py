"""The digits: real data, a model that leaves the generator alone, and the reference result."""

import pytest
import torch

from geartrain.tasks.digits import Digits, _split

TASK = Digits()


def train(steps, seed=0):
    model = TASK.model(seed)
    optimizer, batches = TASK.optimizer(model.parameters()), TASK.batches(0, 1, 64, seed)
    for _ in range(steps):
        optimizer.zero_grad()
        TASK.loss(model, batches.take()).backward()
        optimizer.step()
    return model


def test_the_split_is_of_all_images():
    images, labels, test_images, test_labels = _split()
    assert (len(images), len(test_images)) == (1437, 360)
    assert images.shape[1:] == (1, 8, 8) and images.dtype == torch.float32 and float(images.max()) == 1.0
    assert set(labels.tolist()) == set(test_labels.tolist()) == set(range(10))


def test_a_model_belongs_to_its_seed_and_leaves_the_generator_alone():
    state = torch.random.get_rng_state()
    first, again, other = (TASK.model(seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert sum(tensor.numel() for tensor in first.values()) == 38_282


def test_cuts_make_up_the_model():
    model, images = TASK.model(0), _split()[2][:5]
    out = images
    for name in TASK.cuts():
        out = model.get_submodule(name)(out)
    assert torch.equal(out, model(images))


def test_reference_result():
    model = train(200)
    # Measured 0.981; one image is 0.003, and other processors add up in another order.
    assert TASK.metric(model)["accuracy"] == pytest.approx(0.981, abs=0.02)
    assert model.training


def test_a_model_without_numbers_has_no_metric():
    assert TASK.metric(TASK.model(0).to("meta")) == {}
