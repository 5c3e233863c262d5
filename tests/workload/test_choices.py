"""Choices of type and checkpointing, made to plain values, against models that are traced as they would then be."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from geartrain.errors import ConfigurationError, UnknownName
from geartrain.models.dlrm import DLRM, DLRMSize
from geartrain.models.gpt2 import GPT2Size, gpt2
from geartrain.models.llama import LlamaSize, llama
from geartrain.models.preset import class_loss
from geartrain.models.resnet import Plain
from geartrain.models.traced import adamw
from geartrain.runtime.tracing import trace_workload
from geartrain.workload.choices import checkpointed, with_dtype, with_master_weights, with_skew

WORDS = torch.empty(1, 12, dtype=torch.long)
LLAMA = LlamaSize(width=16, depth=3, num_heads=4, inner=24, vocabulary=37, length=12, num_groups=2)
GPT = GPT2Size(width=16, depth=3, num_heads=4, vocabulary=37, length=12, dropout=0.0)


def traced(model, inputs=WORDS, **more):
    return trace_workload(model, [inputs], class_loss, name="small", source="chosen", optimizer=adamw, **more)


def total(workload, *fields):
    return sum(getattr(layer, field) for layer in workload.layers for field in fields)


def total_of(layer, *fields):
    return sum(getattr(layer, field) for field in fields)


def on_meta(make):
    with torch.device("meta"):
        return make()


MODELS = {
    "llama": lambda: llama(LLAMA),
    "gpt2": lambda: gpt2(GPT),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_two_bytes_are_those_of_a_model_of_two_bytes(make):
    changed = with_dtype(traced(on_meta(make)), "bf16")
    real = traced(on_meta(make).to(torch.bfloat16))
    assert (changed.dtype, changed.element_size, changed.gradient_bytes) == ("bf16", 2, real.gradient_bytes)
    for mine, its in zip(changed.layers, real.layers, strict=True):
        if "norm" in mine.name:  # torch casts up there, which a change of plain values does not know
            continue
        for field in ("forward_flop", "backward_flop", "num_kernels", "num_backward_kernels"):
            assert getattr(mine, field) == getattr(its, field), (mine.name, field)
        for field in ("forward_bytes", "backward_bytes", "forward_fixed_bytes", "backward_fixed_bytes"):
            assert getattr(mine, field) == pytest.approx(getattr(its, field), rel=1e-9), (mine.name, field)
        assert [kernel.dtypes for kernel in mine.forward_kernels] == [kernel.dtypes for kernel in its.forward_kernels]
        assert [kernel.dtype for kernel in mine.backward_kernels] == [kernel.dtype for kernel in its.backward_kernels]
    everything = ("forward_bytes", "backward_bytes", "forward_fixed_bytes", "backward_fixed_bytes")
    norms = sum(total_of(layer, *everything) for layer in real.layers if "norm" in layer.name)
    assert abs(total(changed, *everything) - total(real, *everything)) < norms
    # Indices of words stay as wide as they are where the model is traced.
    kept = [sum(layer.activation for layer in one.layers if "norm" not in layer.name) for one in (changed, real)]
    assert kept[0] == pytest.approx(kept[1], rel=0.05)


def test_mixed_precision_keeps_sixteen_bytes_a_parameter_under_adamw():
    mixed, short = (with_dtype(traced(on_meta(MODELS["llama"])), dtype) for dtype in ("bf16_mixed", "bf16"))
    numel = mixed.num_parameters
    kept = mixed.element_size * (1 + 1 + mixed.optimizer_state)  # parameters, gradients, state
    assert (mixed.dtype, mixed.gradient_dtype, mixed.gradient_bytes) == ("bf16", "fp32", 4 * numel)
    assert kept == pytest.approx(16, abs=0.01)
    # Each parameter is read in four bytes and written in two once in forward, and its gradient the other way round.
    for way in ("forward", "backward"):
        casts = total(mixed, f"{way}_fixed_bytes") - total(short, f"{way}_fixed_bytes")
        assert casts == 6 * numel
    assert total(mixed, "num_kernels") - total(short, "num_kernels") == len(mixed.parameters)
    assert mixed.model_flop == short.model_flop
    if short.memory is not None:
        assert [line[0] for line in mixed.memory.forward] == [line[0] + 2 * numel for line in short.memory.forward]


def test_tf32_is_the_rate_of_products_alone():
    plain = traced(on_meta(MODELS["llama"]))
    changed = with_dtype(plain, "tf32")
    assert (changed.dtype, changed.gradient_dtype, changed.gradient_bytes) == ("tf32", "fp32", plain.gradient_bytes)
    kernels = [kernel for layer in changed.layers for kernel in (*layer.forward_kernels, *layer.backward_kernels)]
    assert {kernel.op.split(".")[1] for kernel in kernels if kernel.dtype == "tf32"} == {"mm", "bmm"}
    assert total(changed, "forward_bytes") == total(plain, "forward_bytes")


def test_types_that_cannot_be():
    plain = traced(nn.Linear(4, 2), torch.empty(1, 4))
    assert with_dtype(plain, "fp32") is plain
    with pytest.raises(UnknownName, match="no data type of a workload is called 'bf61'; did you mean 'bf16'"):
        with_dtype(plain, "bf61")
    with pytest.raises(ConfigurationError, match="is in bf16 already; only one in fp32 can become fp16"):
        with_dtype(with_dtype(plain, "bf16"), "fp16")


def test_values_without_kernels_are_halved():
    plain = traced(nn.Linear(4, 2), torch.empty(1, 4))
    bare = replace(
        plain, layers=tuple(replace(layer, forward_kernels=(), backward_kernels=()) for layer in plain.layers)
    )
    assert total(with_dtype(bare, "fp16"), "forward_bytes") == total(plain, "forward_bytes") / 2
    assert with_master_weights(with_dtype(bare, "fp16")).layers[0].forward_kernels == ()


class Again(nn.Module):
    """A block whose activations torch computes again."""

    def __init__(self, block, nested):
        super().__init__()
        self.block, self.nested = block, nested

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=self.nested, preserve_rng_state=False)


def again(make, nested=False):
    model = on_meta(make)
    for name, block in list(model.named_children()):
        if name.startswith("block"):
            setattr(model, name, Again(block, nested))
    # Whole blocks: torch would leave out what comes after the last tensor that is kept.
    with set_checkpoint_early_stop(False):
        return traced(model)


def small_resnet():
    return nn.Sequential(*(Plain(8, 8, 1) for _ in range(3)), nn.Flatten(), nn.Linear(288, 5))


@pytest.mark.parametrize("name", MODELS)
def test_checkpointed_blocks_do_what_torch_does(name):
    make = MODELS[name]
    plain, real = traced(on_meta(make)), again(make)
    mine = checkpointed(plain, "blocks")
    for fields in (("forward_flop",), ("backward_flop",), ("forward_bytes", "forward_fixed_bytes"), ("num_kernels",)):
        assert total(mine, *fields) == pytest.approx(total(real, *fields), rel=1e-6), fields
    assert total(mine, "backward_bytes") == pytest.approx(total(real, "backward_bytes"), rel=0.01)
    # Hooks on saved tensors do not see the inputs that torch keeps: 12 words x 16 wide x 4 bytes of each block.
    assert total(mine, "activation") == total(real, "activation") + 3 * 12 * 16 * 4
    assert mine.model_flop == pytest.approx(plain.model_flop)
    assert [layer.name for layer in mine.layers] == [layer.name for layer in plain.layers]


@pytest.mark.parametrize("name", MODELS)
def test_checkpointed_blocks_need_the_memory_that_torch_needs(name):
    """Blocks run in a backward of their own here: other ones hang in circles until the garbage is collected."""
    make = MODELS[name]
    mine, real = checkpointed(traced(on_meta(make)), "blocks"), again(make, nested=True)
    for field in ("backward_fresh", "backward_kept"):
        for samples in (8, 64):
            expected = at(getattr(real.memory, field), samples)
            assert at(getattr(mine.memory, field), samples) == pytest.approx(expected, rel=0.12), (field, samples)


def at(peak, samples):
    return max(fixed + samples * each for fixed, each in peak)


def test_pictures_keep_the_input_of_a_block():
    plain = traced(on_meta(small_resnet), torch.empty(1, 8, 6, 6))
    mine = checkpointed(plain, "blocks")
    blocks = [layer for layer in mine.layers if layer.name.partition(".")[0] in "012"]
    assert sum(layer.activation for layer in blocks) == 3 * 8 * 6 * 6 * 4
    assert total(mine, "recomputed_flop") == sum(
        layer.forward_flop for layer in plain.layers if layer.name.partition(".")[0] in "012"
    )


def test_all_is_also_what_is_no_block():
    plain = traced(on_meta(MODELS["gpt2"]))
    some, everything = (checkpointed(plain, which) for which in ("blocks", "all"))
    head = next(layer for layer in plain.layers if layer.name == "head")
    assert total(everything, "recomputed_flop") > total(some, "recomputed_flop") + head.forward_flop
    assert total(everything, "activation") < total(some, "activation")
    loss = [layer for layer in everything.layers if layer.name == "(loss)"]
    assert all(layer.recomputed_flop == 0 for layer in loss)


def test_some_blocks_by_their_numbers():
    plain = traced(on_meta(MODELS["gpt2"]))
    mine = checkpointed(plain, "0+2")
    assert {layer.name.partition(".")[0] for layer in mine.layers if layer.recomputed_flop} == {"block0", "block2"}


def test_what_cannot_be_checkpointed():
    plain = traced(nn.Linear(4, 2), torch.empty(1, 4))
    assert checkpointed(plain, "none") is plain
    with pytest.raises(ConfigurationError, match="small has no blocks to checkpoint"):
        checkpointed(plain, "blocks")
    with pytest.raises(UnknownName, match="no choice of checkpointing is called 'block'; did you mean 'blocks'"):
        checkpointed(plain, "block")


def test_skew_is_of_look_ups():
    size = DLRMSize(bottom=(3, 4), rows=(50, 60), top=(5, 1), lookups=7)
    workload = trace_workload(
        on_meta(lambda: DLRM(size)),
        [torch.empty(1, 3), torch.empty(1, 2, 7, dtype=torch.long)],
        lambda out: out.sum(),
        name="clicks",
        source="chosen",
    )
    skewed = with_skew(workload, 1.1)
    lookups = [kernel.lookup for layer in skewed.layers for kernel in layer.forward_kernels if kernel.lookup]
    assert [(one.rows, one.width, one.per_sample, one.skew) for one in lookups] == [(50, 4, 7, 1.1), (60, 4, 7, 1.1)]
    assert math.isclose(skewed.model_flop, workload.model_flop)
