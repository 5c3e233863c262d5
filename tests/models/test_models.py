"""Model definitions: parameters and arithmetic by the literature, and that traced workloads become tasks."""

import pytest
import torch

from geartrain.errors import UnknownName
from geartrain.models import PRESETS, WORKLOAD_SOURCES, WORKLOADS, get_workload
from geartrain.models.alexnet import alexnet
from geartrain.models.googlenet import googlenet
from geartrain.models.resnet import resnet50
from geartrain.models.settings import of_their_kind
from geartrain.models.vgg import vgg16
from geartrain.tasks import get_task

# Multiply-adds of convolutions and linear layers on one picture of 224x224.
IMAGE_PRODUCTS = {
    "alexnet": 714_188_480,
    "vgg16": 15_470_264_320,
    "googlenet": 1_582_671_872,
    "resnet18": 1_814_073_344,
    "resnet50": 4_089_184_256,
    "resnet152": 11_513_626_624,
}
# Width, depth, tokens, inner width of the two (gated: three) linear maps together, scores per token.
TRANSFORMERS = {
    "bert-base": (768, 12, 128, 2 * 3072, 0),
    "bert-base-512": (768, 12, 512, 2 * 3072, 0),
    "bert-large": (1024, 24, 128, 2 * 4096, 0),
    "bert-large-512": (1024, 24, 512, 2 * 4096, 0),
    "gpt2": (768, 12, 1024, 2 * 3072, 50_257),
    "gpt2-medium": (1024, 24, 1024, 2 * 4096, 50_257),
    "gpt2-xl": (1600, 48, 1024, 2 * 6400, 50_257),
    "gpt3-1.3b": (2048, 24, 2048, 2 * 8192, 50_257),
    "gpt3-6.7b": (4096, 32, 2048, 2 * 16_384, 50_257),
    "gpt3-175b": (12_288, 96, 2048, 2 * 49_152, 50_257),
    "llama-7b": (4096, 32, 2048, 3 * 11_008, 32_000),
    "llama2-7b": (4096, 32, 4096, 3 * 11_008, 32_000),
    "llama2-13b": (5120, 40, 4096, 3 * 13_824, 32_000),
    "llama2-70b": (8192, 80, 4096, 3 * 28_672, 32_000),
}
ENCODER_DECODERS = ("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b")
CLICKS = ("dlrm", "dlrm-ddp", "dlrm-mlperf")
QUICK = {"resnet18", "resnet50", "alexnet", "vgg16", "googlenet", "bert-base", "gpt2"}


def cases(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


def defaults(name):
    settings = of_their_kind(name, {}, PRESETS[name].settings)
    settings.pop("skew", None)
    return settings


def test_every_workload_has_a_source():
    assert set(WORKLOADS) == set(WORKLOAD_SOURCES) == {*IMAGE_PRODUCTS, *TRANSFORMERS, *ENCODER_DECODERS, *CLICKS}
    assert all(WORKLOAD_SOURCES.values())
    with pytest.raises(UnknownName, match="did you mean 'resnet50'"):
        get_workload("resnet5")


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_by_the_literature(name):
    """The numbers in the table are checked here without tracing, and again whenever a workload is traced."""
    with torch.device("meta"):
        model = PRESETS[name].model(**defaults(name))
    assert sum(p.numel() for p in model.parameters()) == PRESETS[name].num_parameters


def test_a_definition_with_another_count_is_seen():
    preset = PRESETS["alexnet"]
    wrong = type(preset)(**{**vars(preset), "num_parameters": 1})
    with pytest.raises(AssertionError, match="61100840 != 1"):
        wrong.workload("alexnet")


@pytest.mark.parametrize("name", cases(IMAGE_PRODUCTS))
def test_image_models(name):
    workload = get_workload(name)
    weighted = [layer for layer in workload.layers if any(len(p.shape) > 1 for p in layer.parameters)]
    assert sum(layer.forward_flop for layer in weighted) == 2 * IMAGE_PRODUCTS[name]
    forward = sum(layer.forward_flop for layer in workload.layers)
    # Backward takes two products for each of forward, but none for the gradient of the pictures.
    assert 1.85 * forward < sum(layer.backward_flop for layer in workload.layers) < 2.05 * forward
    assert workload.optimizer_state == 1
    trains_its_parameters(name)


@pytest.mark.parametrize("name", cases(TRANSFORMERS))
def test_transformers(name):
    width, depth, tokens, inner, scores = TRANSFORMERS[name]
    workload = get_workload(name)
    grouped = 2 * width * 7 * width // 8 if name == "llama2-70b" else 0  # 8 of 64 heads have keys and values
    products = tokens * (depth * (4 * width**2 - grouped + width * inner + 2 * tokens * width) + width * scores)
    # What is not a product (norms, softmax, sums) adds at most a few percent.
    forward = sum(layer.forward_flop for layer in workload.layers)
    assert 1 < forward / (2 * products) < 1.04
    assert sum(layer.backward_flop for layer in workload.layers) == pytest.approx(2 * forward, rel=0.03)
    assert (workload.optimizer_state, workload.update_kernels < 20) == (pytest.approx(2, abs=1e-3), True)
    trains_its_parameters(name)


def trains_its_parameters(name):
    """The task that a workload's name stands for has the model's parameters in their order."""
    with torch.device("meta"):
        shapes = [(key, p.shape) for key, p in PRESETS[name].model(**defaults(name)).named_parameters()]
    assert [(key, p.shape) for key, p in get_task(name).model(0).named_parameters()] == shapes
    assert get_workload(name) is get_workload(name)


@pytest.mark.parametrize("model", [alexnet, vgg16, googlenet])
def test_image_models_give_a_score_per_class(model):
    with torch.device("meta"):
        assert model(7)(torch.empty(2, 3, 224, 224)).shape == (2, 7)


def test_resnet50_by_the_literature():
    workload = get_workload("resnet50")
    assert len(workload.parameters) == 161
    assert sum(layer.forward_flop for layer in workload.layers) == pytest.approx(8.2e9, rel=0.01)


def test_resnet50_strides_in_the_3x3():
    with torch.device("meta"):
        model = resnet50()
        block = model.layer2[0]
        assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))
        assert model(torch.empty(2, 3, 64, 64)).shape == (2, 1000)
