"""Compression of models that are narrow, of several types, or used differently by each worker."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from geartrain.codecs.base import Flat, Streams, packed, unpacked
from geartrain.codecs.error_feedback import ErrorFeedback
from geartrain.codecs.qsgd import QSGD
from geartrain.codecs.terngrad import SharedTernGrad, TernGrad
from geartrain.codecs.top_k import TopK
from geartrain.errors import NotFinite
from geartrain.exchange.all_reduce import AllReduce
from geartrain.exchange.gtopk_tree import GTopKTree
from geartrain.runtime.loop import Training
from geartrain.runtime.worker import Task
from geartrain.strategies import parse
from geartrain.strategies.parts import CODECS
from geartrain.tasks.data import DealtBatches
from tests.conformance.cases import SIMULATED, real_engine
from tests.conformance.harness import CLUSTER, resume, train
from tests.conformance.tasks import Curve, Exploding
from tests.strategies.test_comm_survey_card import exchange, numbers

NARROW = [torch.bfloat16, torch.float16]
STRATEGIES = [
    "top_k:density=0.3",
    "top_k:density=0.3,bucket_size=1B,feedback=none",
    "gtop_k:density=0.3",
    "gtop_k:density=0.3,bucket_size=64B,overlap=false",
    "powersgd:rank=1,min_ratio=0.0",
    "powersgd:rank=2,min_ratio=0.0,bucket_size=1B,warm_start=false,error_feedback=false",
    "qsgd",
    "terngrad",
    "terngrad:scaler=own",
    "sign_sgd",
    "sign_sgd:kind=majority",
    "mg_wfbp",
    "compressed:codec=fp16,error_feedback=true",
    "compressed:codec=bf16,error_feedback=true",
    "compressed:codec=random_k,density=0.3",
]


class Uneven(nn.Module):
    """Parameters of three types, one of which a worker uses only where its samples say so."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.full((3, 4), 0.5, dtype=torch.float64))
        self.some = nn.Parameter(torch.full((5, 3), 0.25))
        self.narrow = nn.Parameter(torch.full((3, 3), 0.5, dtype=torch.bfloat16))
        self.empty = nn.Parameter(torch.empty(0))
        self.last = nn.Parameter(torch.full((3, 7), 0.5))

    def forward(self, inputs):
        total = self.wide.square().sum().float() + self.narrow.float().square().sum() + self.last.square().sum()
        total = total + self.empty.sum()
        return inputs.mean() * total + (16 * self.some.square().sum() if inputs.mean() > 0.5 else 0)


@dataclass(frozen=True)
class UnevenTask(Task):
    name = "uneven"
    source = "made for tests"

    def model(self, seed):
        return Uneven()

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=0.01)

    def loss(self, model, batch):
        return model(batch.inputs)

    def metric(self, model):
        return {}

    def batches(self, rank, num_workers, batch, seed):
        inputs = torch.tensor([0.25, 1.0]).repeat(2 * num_workers)
        return DealtBatches(inputs, inputs, rank=rank, num_workers=num_workers, batch=batch, seed=seed)


@pytest.mark.parametrize("workers", [2, 3, 5, 16])
@pytest.mark.parametrize("text", STRATEGIES)
def test_types_of_their_own_and_a_tensor_that_some_workers_leave_unused(text, workers):
    results = train(SIMULATED, parse(text), UnevenTask(), workers, steps=3, batch=workers)
    first = results[0]["weights"]
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(first, result["weights"], strict=True))
    assert all(tensor.isfinite().all() for tensor in first)
    assert not torch.equal(first[1], Uneven().some)


@pytest.mark.parametrize("text", STRATEGIES)
def test_types_of_their_own_are_saved_and_gone_on_with(text):
    whole, saved = (train(SIMULATED, parse(text), UnevenTask(), 3, steps=steps) for steps in (4, 2))
    rest = resume(SIMULATED, parse(text), UnevenTask(), 3, steps=2, saved=saved)
    for mine, other in zip(rest, whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine["weights"], other["weights"], strict=True))


@dataclass(frozen=True)
class LastIsMatrix(Exploding):
    """What tells of a bad loss is the first element of a matrix."""

    name = "last_is_matrix"

    def model(self, seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2, bias=False))


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("text", STRATEGIES)
def test_a_matrix_tells_of_a_bad_loss(text, workers):
    ends = {}

    def main(ctx):
        try:
            ends[ctx.rank] = training(ctx)["stopped"]
        except NotFinite as error:
            ends[ctx.rank] = error.step

    training = Training(strategy=parse(text), task=LastIsMatrix(rank=1, step=2), steps=5, batch=2 * workers)
    SIMULATED.run(main, CLUSTER, workers=workers)
    assert ends == dict.fromkeys(range(workers), 2)


# Narrow types


@pytest.mark.parametrize("dtype", [*NARROW, torch.float64])
@pytest.mark.parametrize("density", [0.05, 0.055])
def test_gtop_k_sends_an_even_or_odd_number_of_pairs_of_any_type(dtype, density):
    gradients = [(8 * numbers(seed, 200)).round().to(dtype) for seed in range(3)]
    results = exchange(GTopKTree(), ErrorFeedback(inner=TopK(density=density)), gradients)
    total = results[0][0][0]
    assert all(torch.equal(totals[0], total) for totals, _ in results)
    missing = sum(gradients) - total - sum(state["residual"] for _, state in results)
    assert total.count_nonzero() > 0 and not missing[total == 0].any()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("codec", ["fp16", "bf16"])
def test_a_cast_to_the_type_that_is_there_already_sends_the_numbers(dtype, codec):
    gradients = [(8 * numbers(seed, 200)).round().to(dtype) for seed in range(2)]
    results = exchange(AllReduce(), ErrorFeedback(inner=CODECS[codec]), gradients)
    for totals, state in results:
        assert torch.equal(totals[0], sum(gradients)) and not state["residual"].any()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("codec", [QSGD(levels=127), TernGrad(), SharedTernGrad()], ids=lambda codec: codec.name)
def test_the_mean_over_draws_is_the_gradient_in_narrow_types(codec, dtype):
    """Among numbers of very different sizes: the small ones are drawn seldom, and not more often than they should."""
    flat, count = Flat((1000,), dtype, torch.device("cpu")), 400
    x = (numbers(4, 1000).sign() * torch.logspace(-3, 0, 1000)).to(dtype)
    draws, mean, out = Streams(torch.Generator().manual_seed(1), torch.Generator()), torch.zeros(1000), x.clone()
    for _ in range(count):
        payload, _ = codec.encode(x, flat, {}, draws, codec.agree(x, flat, {}))
        codec.decode(payload, flat, out)
        mean += out.float() / count
    small = x.abs() < 0.03
    assert (mean[small] * x[small].sign()).sum() == pytest.approx(x[small].abs().float().sum().item(), rel=0.1)


@pytest.mark.parametrize("scale", [0.0, 1e-6])
@pytest.mark.parametrize("dtype", [*NARROW, torch.float32])
def test_qsgd_of_numbers_near_zero_stays_there(dtype, scale):
    flat = Flat((600,), dtype, torch.device("cpu"))
    x = (scale * numbers(4, 600)).to(dtype)
    out = torch.ones_like(x)
    QSGD().decode(QSGD().encode(x, flat, {}, Streams(torch.Generator(), torch.Generator()))[0], flat, out)
    assert out.float().norm() <= 4 * x.float().norm()


def test_packed_bytes_have_the_widest_type_first_so_that_they_are_views():
    parts = (torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16), torch.tensor([3, 4, 5], dtype=torch.int32))
    row = packed(parts)
    views = unpacked(row, parts)
    assert all(torch.equal(a, b) for a, b in zip(views, parts, strict=True))
    row.zero_()
    assert not any(view.any() for view in views)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("text", STRATEGIES)
def test_a_narrow_model_learns(text, dtype):
    rate = 0.001 if "majority" in text else 0.05
    results = train(SIMULATED, parse(text), Curve(dtype, rate, linear=True), 2, steps=20, batch=12)
    assert torch.tensor(results[0]["losses"][-4:]).mean() < 0.9 * torch.tensor(results[0]["losses"][:4]).mean()
    assert all(torch.equal(a, b) for a, b in zip(results[0]["weights"], results[1]["weights"], strict=True))


@pytest.mark.multi
@pytest.mark.parametrize("text", ["gtop_k:density=0.3", "powersgd:rank=1,min_ratio=0.0", "terngrad"])
def test_a_narrow_model_learns_on_real_processes(text):
    real, simulated = (
        train(engine, parse(text), Curve(torch.bfloat16, 0.01, linear=True), 2, steps=3, batch=12)
        for engine in (real_engine(), SIMULATED)
    )
    assert all(torch.equal(a, b) for a, b in zip(real[0]["weights"], real[1]["weights"], strict=True))
    for mine, other in zip(real[0]["weights"], simulated[0]["weights"], strict=True):
        torch.testing.assert_close(mine, other, rtol=0.02, atol=0.02)
