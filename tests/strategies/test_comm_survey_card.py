"""What must hold of compression and fusion, item by item as on the card of the communication survey."""

import copy
import itertools

import pytest
import torch

import geartrain
from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.codecs import bits
from geartrain.codecs.base import Flat, Payload, Streams, unpacked
from geartrain.codecs.dense import Cast
from geartrain.codecs.error_feedback import ErrorFeedback
from geartrain.codecs.momentum_correction import MomentumCorrection
from geartrain.codecs.qsgd import QSGD
from geartrain.codecs.random_k import RandomK
from geartrain.codecs.sign import ScaledSign, Sign
from geartrain.codecs.terngrad import SharedTernGrad, TernGrad
from geartrain.codecs.top_k import TopK
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import IncompatibleParts, StrategyError
from geartrain.exchange.all_reduce import AllReduce
from geartrain.exchange.fusion import last_end, merged_groups
from geartrain.exchange.gather_sum import GatherSum
from geartrain.exchange.gtopk_tree import GTopKTree
from geartrain.exchange.pipeline import GradientPipeline
from geartrain.record.means import mean_step
from geartrain.record.split import split
from geartrain.runtime.buckets import Layout
from geartrain.runtime.loop import Training
from geartrain.runtime.tracing import task_workload
from geartrain.strategies import parse
from geartrain.strategies.compressed import Compressed
from geartrain.strategies.parts import CODECS
from geartrain.strategies.powersgd import LowRankExchange, PowerSGD
from geartrain.tasks.digits import Digits
from tests.conformance.cases import SIMULATED
from tests.conformance.harness import CLUSTER, run, train
from tests.conformance.tasks import Curve, DigitsAtRate, Golden

CPU = torch.device("cpu")
SIZES = (700, 41, 259)
FLAT = Flat(SIZES, torch.float32, CPU)
FEEDBACK = [
    TopK(density=0.03),
    RandomK(density=0.2, unbiased=False),
    Cast(dtype=torch.float16),
    Cast(dtype=torch.bfloat16),
]


def streams(seed=0):
    return Streams(torch.Generator().manual_seed(seed), torch.Generator().manual_seed(99))


def numbers(seed=1, numel=FLAT.numel):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def decoded(codec, payload, flat=FLAT):
    out = torch.full((flat.numel,), 7.0)
    codec.decode(payload, flat, out)
    return out


def encoded(codec, x, seed=0, flat=FLAT):
    return codec.encode(x, flat, codec.init(flat), streams(seed), codec.agree(x, flat, {}))[0]


def exchange(exchange, codec, gradients, steps=1, overlap=True):
    """(what each worker got, its codec's state) after some steps with the same gradients."""
    flat = Flat((gradients[0].numel(),), gradients[0].dtype, CPU)

    def main(ctx):
        pipeline = GradientPipeline(ctx, codec, exchange, [flat], overlap=overlap)
        totals = []
        for _ in range(steps):
            out = gradients[ctx.rank].clone()
            pipeline.start(out)
            pipeline.wait()
            totals.append(out)
        state = pipeline.state_dict()["codec"][0]
        pipeline.close()
        return totals, state

    return SIMULATED.run(main, CLUSTER, workers=len(gradients)).results


# 3: merging


def layers(seed, count=12):
    """(ready times, bytes) of some layers."""
    draws = torch.Generator().manual_seed(seed)
    ready = torch.rand(count, generator=draws).cumsum(0).tolist()
    return ready, torch.randint(1, 100, (count,), generator=draws).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_merged_groups_end_no_later_than_wfbp_and_bulk(seed):
    ready, nbytes = layers(seed)
    for alpha, beta in itertools.product((0.0, 0.05, 0.5, 3.0), (0.0, 0.002, 0.02)):
        groups = merged_groups(ready, nbytes, alpha, beta)
        assert [k for group in groups for k in group] == list(range(len(ready)))
        alone, together = [[k] for k in range(len(ready))], [list(range(len(ready)))]
        ends = [last_end(each, ready, nbytes, alpha, beta) for each in (groups, alone, together)]
        assert ends[0] <= min(ends[1:]) * (1 + 1e-12)


def test_without_a_start_up_cost_merging_waits_for_a_busy_wire_only():
    ready, nbytes = [0.0, 1.0, 1.2, 3.5, 9.0], [10, 10, 10, 10, 10]
    assert merged_groups(ready, nbytes, 0.0, 0.15) == [[0], [1, 2], [3], [4]]
    assert merged_groups(ready, nbytes, 0.0, 0.01) == [[0], [1], [2], [3], [4]]
    assert merged_groups(ready, nbytes, 1e9, 0.15) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("name", ["ethernet-10g", "ethernet-1g"])
def test_mg_wfbp_sends_the_bytes_of_the_groups_that_the_closed_form_finds(name):
    task, steps = Digits(), 4
    training = Training(strategy=parse("mg_wfbp"), task=task, steps=steps, batch=64, evaluate=False)
    record = SimulatedEngine(Roofline()).run(training, load_cluster(name), workers=4)
    last = record.logs[0].steps[-1]
    sizes = [op.size for op in record.logs[0].ops if last.begin <= op.posted < last.end]
    assert sum(sizes) == task_workload(task).gradient_bytes
    assert 1 <= len(sizes) < len(task_workload(task).parameters)
    cost = parse("mg_wfbp").cost(task_workload(task), Placement(load_cluster(name), 4), 64)
    assert cost.notes == (f"{len(sizes)} bucket(s), exchanged one after another",)


# 5: error feedback forgets nothing


@pytest.mark.parametrize("codec", FEEDBACK, ids=lambda codec: codec.name)
def test_what_is_sent_and_what_is_kept_are_the_gradient_and_what_was_kept(codec):
    feedback = ErrorFeedback(inner=codec)
    state, draws = feedback.init(FLAT), streams()
    for step in range(3):
        x, before = numbers(step), state["residual"].clone()
        payload, state = feedback.encode(x, FLAT, state, draws)
        assert torch.equal(decoded(codec, payload) + state["residual"], x + before)
        assert state["residual"].any()


def test_top_k_takes_the_largest_and_momentum_correction_clears_them():
    codec = MomentumCorrection(inner=TopK(density=0.01), momentum=0.5)
    state, x = codec.init(FLAT), numbers()
    payload, state = codec.encode(x, FLAT, state, streams())
    places = payload.sent[1].long()
    assert len(places) == 10 and set(places.tolist()) == set(x.abs().topk(10).indices.tolist())
    assert not state["velocity"][places].any() and not state["residual"][places].any()
    rest = torch.ones(FLAT.numel, dtype=torch.bool).index_fill(0, places, False)
    _, state = codec.encode(torch.zeros_like(x), FLAT, state, streams())
    kept = rest & (state["residual"] != 0)
    assert torch.allclose(state["residual"][kept], 1.5 * x[kept])


@pytest.mark.parametrize("workers", [2, 3, 4, 7])
@pytest.mark.parametrize("overlap", [True, False])
def test_gtop_k_loses_only_what_is_cut_inside_the_tree_at_places_that_survive(workers, overlap):
    """Whole numbers, so that sums are exact: what is missing is at the chosen places, and at no other."""
    gradients = [(8 * numbers(seed, 200)).round() for seed in range(workers)]
    codec = ErrorFeedback(inner=TopK(density=0.05))
    results = exchange(GTopKTree(), codec, gradients, overlap=overlap)
    total = results[0][0][0]
    assert all(torch.equal(each[0][0], total) for each in results)
    assert 0 < total.count_nonzero() <= 10
    missing = sum(gradients) - total - sum(state["residual"] for _, state in results)
    assert not missing[total == 0].any()
    if workers == 2:  # the root is the only node of the tree
        assert not missing.any()


def test_gtop_k_of_the_same_gradients_is_their_top_k():
    x = numbers(3, 200)
    total = exchange(GTopKTree(), TopK(density=0.05), [x] * 4)[0][0][0]
    places = x.abs().topk(10).indices
    assert torch.equal(total, torch.zeros_like(x).index_copy(0, places, 4 * x[places]))


# 6: all ranks alike


@pytest.mark.parametrize(
    "text",
    [
        "top_k:density=0.2",
        "gtop_k:density=0.2,bucket_size=64B",
        "powersgd:rank=1,min_ratio=0.0",
        "qsgd",
        "terngrad",
        "terngrad:scaler=own",
        "sign_sgd",
        "sign_sgd:kind=majority",
        "compressed:codec=random_k,density=0.3",
        "compressed:codec=bf16,error_feedback=true",
    ],
)
def test_all_workers_have_the_same_weights_and_they_changed(text):
    weights = [result["weights"] for result in train(SIMULATED, parse(text), Curve(), 3)]
    first = Curve().model(0).parameters()
    assert all(torch.equal(a, b) for other in weights[1:] for a, b in zip(weights[0], other, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(weights[0], first, strict=True))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("exchange", ["all_reduce", "gather_sum"])
def test_narrow_types_are_exact_on_small_whole_numbers(dtype, exchange):
    results = [train(SIMULATED, parse(text), Golden(), 2) for text in (f"compressed:codec={dtype}", "synchronous")]
    assert all(torch.equal(a, b) for a, b in zip(results[0][0]["weights"], results[1][0]["weights"], strict=True))


# 7: unbiased, and exact where it must be


@pytest.mark.parametrize(
    "codec",
    [QSGD(levels=1, block=64), QSGD(levels=5, block=300), TernGrad(), SharedTernGrad(), RandomK(density=0.5)],
    ids=str,
)
def test_the_mean_over_draws_is_the_gradient(codec):
    x, draws, mean, count = numbers(4), streams(5), torch.zeros(FLAT.numel), 400
    for _ in range(count):
        payload, _ = codec.encode(x, FLAT, {}, draws, codec.agree(x, FLAT, {}))
        mean += decoded(codec, payload) / count
    # A number is off by at most one step, seldom if it is small: its variance is below step * |x|. Five standard
    # deviations, and five draws for what is hardly ever drawn.
    step = x.norm() if isinstance(codec, QSGD) else x.abs().max()
    assert ((mean - x).abs() <= 5 * (step * x.abs() / count).sqrt() + 5 * step / count).all()
    assert (mean - x).mean().abs() < 0.02


def test_qsgd_has_at_most_the_variance_of_its_bound():
    codec, x, draws = QSGD(levels=4, block=100), numbers(2, 100), streams()
    flat = Flat((100,), torch.float32, CPU)
    errors = [(decoded(codec, codec.encode(x, flat, {}, draws)[0], flat) - x).square().sum() for _ in range(200)]
    assert torch.stack(errors).mean() <= min(100 / 16, 10 / 4) * x.square().sum()


def test_terngrad_has_three_values_per_tensor_and_zero_stays_zero():
    x = numbers()
    x[:5] = 0
    for codec in (TernGrad(), SharedTernGrad()):
        out = decoded(codec, encoded(codec, x))
        for part, whole in zip(out.split(list(SIZES)), x.split(list(SIZES)), strict=True):
            assert set(part.unique().tolist()) <= {-whole.abs().max().item(), 0.0, whole.abs().max().item()}
        assert not out[:5].any()


def test_signs_of_one_size_are_decoded_exactly():
    x = torch.where(numbers() < 0, -0.25, 0.25)
    assert torch.equal(decoded(ScaledSign(), encoded(ScaledSign(), x)), x)
    assert torch.equal(decoded(Sign(), encoded(Sign(), x)), 4 * x)


def test_the_majority_wins_and_a_draw_is_zero():
    votes = [torch.tensor([1.0, -2.0, 3.0]), torch.tensor([5.0, -1.0, -1.0])]
    assert exchange(GatherSum(), Sign(), votes)[0][0][0].tolist() == [1.0, -1.0, 0.0]
    assert exchange(GatherSum(), Sign(), [*votes, -votes[0]])[0][0][0].tolist() == [1.0, -1.0, -1.0]


# 8: PowerSGD


def low_rank(strategy, gradients, steps=1):
    """What each worker got for its matrix, and its residual, after some steps."""

    def main(ctx):
        layout = bucket_of(gradients[0])
        low = LowRankExchange(strategy, ctx, [layout])
        for _ in range(steps):
            out = gradients[ctx.rank].flatten().clone()
            low.start(out)
            low.wait()
        return out.view_as(gradients[0]), low.buckets[0].residual

    return SIMULATED.run(main, CLUSTER, workers=len(gradients)).results


def bucket_of(matrix):
    return Layout((torch.nn.Parameter(torch.empty_like(matrix)),), (0, matrix.numel()))


@pytest.mark.parametrize("rank", [5, 9])
def test_powersgd_of_full_rank_is_exact(rank):
    gradients = [numbers(seed, 60).view(5, 12) for seed in range(3)]
    results = low_rank(PowerSGD(rank=rank, min_ratio=0.0), gradients)
    for out, _ in results:
        # QR and two products in single precision, of numbers around one.
        torch.testing.assert_close(out, sum(gradients), rtol=1e-5, atol=1e-5)
        assert torch.equal(out, results[0][0])
    torch.testing.assert_close(sum(r for _, r in results), torch.zeros(60), rtol=0, atol=1e-4)


@pytest.mark.parametrize("warm_start", [True, False])
@pytest.mark.parametrize("workers", [2, 3])
def test_powersgd_of_full_rank_trains_as_synchronous(workers, warm_start):
    """Matrices of 7 x 3 and 2 x 7. A test and no declared limit, as QR rounds whole numbers, too."""
    full, task = PowerSGD(rank=7, min_ratio=0.0, warm_start=warm_start), Curve(linear=True)
    dense = train(SIMULATED, parse("synchronous"), task, workers, steps=10)
    for mine, other in zip(train(SIMULATED, full, task, workers, steps=10), dense, strict=True):
        torch.testing.assert_close(mine["weights"], other["weights"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2])
def test_powersgd_recovers_a_gradient_of_rank_one_in_one_step(rank):
    gradients = [torch.outer(numbers(1, 8), numbers(2, 30)) * scale for scale in (0.5, 2.0)]
    out, _ = low_rank(PowerSGD(rank=rank, min_ratio=0.0), gradients)[0]
    torch.testing.assert_close(out, sum(gradients), rtol=1e-4, atol=1e-4)


def test_powersgd_forgets_nothing_and_comes_closer_with_a_warm_start():
    gradients = [numbers(seed, 600).view(20, 30) for seed in range(2)]
    results = low_rank(PowerSGD(rank=1), gradients)
    kept = sum(residual for _, residual in results).view(20, 30)
    torch.testing.assert_close(results[0][0] + kept, sum(gradients), rtol=1e-4, atol=1e-4)
    once, often = (low_rank(PowerSGD(rank=1, error_feedback=False), gradients, steps)[0][0] for steps in (1, 20))
    best = torch.linalg.svdvals(sum(gradients))[0]
    assert once.norm() < often.norm() <= best * 1.0001
    assert often.norm() > 0.98 * best


# Bytes


@pytest.mark.parametrize("codec", [*CODECS.values(), QSGD(levels=2, block=10), TopK(density=0.37)], ids=str)
@pytest.mark.parametrize("sizes", [(1,), (7,), (8, 1), SIZES])
def test_a_payload_has_the_bytes_that_are_promised(codec, sizes):
    flat = Flat(sizes, torch.float32, CPU)
    payload = encoded(codec, numbers(numel=flat.numel), flat=flat)
    assert sum(part.nbytes for part in payload.sent) == codec.wire_bytes(flat)


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("count", [1, 7, 8, 33])
def test_packing_is_undone_and_wastes_no_byte(width, count):
    codes = torch.randint(0, 2**width, (count,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    data = bits.pack(codes, width)
    assert data.nbytes == bits.packed_size(count, width) == -(-count * width // 8)
    assert torch.equal(bits.unpack(data, count, width), codes)


def test_wide_types_are_unpacked_from_anywhere():
    parts = (torch.tensor([1.5, -2.0]), torch.tensor([3], dtype=torch.uint8))
    row = torch.cat([part.view(torch.uint8) for part in parts])
    back = unpacked(torch.cat([row[:1], row])[1:], parts)
    assert all(torch.equal(a, b) for a, b in zip(back, parts, strict=True))


def test_one_per_cent_of_top_k_is_two_per_cent_of_the_bytes():
    workload = task_workload(Digits())
    for workers in (2, 3, 8):
        place = Placement(load_cluster("local"), workers)
        sparse, dense = (parse(text).cost(workload, place, 64).sent[0] for text in ("top_k", "synchronous"))
        assert sparse.nbytes / (workers - 1) <= 0.03 * workload.gradient_bytes
        assert sparse.nbytes / dense.nbytes == pytest.approx(0.01 * workers, rel=0.02)  # all-gather grows with W


# Closed form and record


@pytest.mark.parametrize(
    "text", ["top_k", "sign_sgd", "terngrad", "powersgd", "compressed", "qsgd:bucket_size=1B", "top_k:overlap=false"]
)
def test_the_closed_form_is_the_simulation_where_nothing_contends(text):
    cluster, strategy = load_cluster("ethernet-1g"), parse(text)
    training = Training(strategy=strategy, task=Digits(), steps=3, batch=64, evaluate=False)
    record = SimulatedEngine(Roofline()).run(training, cluster, workers=4)
    cost = strategy.cost(task_workload(Digits()), Placement(cluster, 4), 64)
    # The form knows nothing of the few kernels with which a step carries news of a loss that is not finite.
    assert mean_step(split(record)).step_time == pytest.approx(cost.step_time, rel=0.02)
    assert cost.codec > 0
    assert {span.name for span in record.logs[0].spans} >= {"compress", "decompress"}


def test_residuals_are_memory():
    place, workload = Placement(CLUSTER, 2), task_workload(Digits())
    kept = [
        parse(text).cost(workload, place, 64).memory.get("residual", 0) / workload.gradient_bytes
        for text in ("qsgd", "top_k", "top_k:feedback=momentum_correction")
    ]
    assert kept == [0, 1, 2]


# Parts that do not fit


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "compressed:codec=top_k",
            "exchange=gather_sum or gtopk_tree;   or codec=none, fp16, bf16, random_k, terngrad_",
        ),
        ("compressed:codec=qsgd,exchange=gtopk_tree", "exchange=gather_sum;   or codec=top_k"),
        ("compressed:codec=none,error_feedback=true", "leaves nothing out"),
        ("compressed:codec=sign,exchange=gather_sum,error_feedback=true", "votes without a size.*\n.*\n.*scaled_sign"),
        ("compressed:codec=terngrad_shared,error_feedback=true", "errors would grow"),
        ("compressed:codec=fp16,momentum_correction=true", "fits:   codec=top_k"),
        ("compressed:codec=fp16,density=0.1", "fits:   codec=top_k or random_k"),
        ("compressed:codec=fp16,levels=3", "fits:   codec=qsgd"),
        (
            "compressed:codec=top_k,exchange=gather_sum,error_feedback=true,momentum_correction=true",
            "is error feedback already",
        ),
    ],
)
def test_misfits_are_refused_with_what_fits(text, words):
    with pytest.raises(IncompatibleParts, match=words):
        parse(text)


def test_every_pair_of_codec_and_exchange_runs_or_is_refused():
    ran = set()
    for codec, way in itertools.product(CODECS, ("all_reduce", "gather_sum", "gtopk_tree")):
        try:
            strategy = Compressed(codec=codec, exchange=way)
        except IncompatibleParts:
            continue
        train(SIMULATED, strategy, Curve(), 2, steps=2)
        ran.add((codec, way))
    sums = {"none", "fp16", "bf16", "random_k", "terngrad_shared"}
    assert ran == {(c, "gather_sum") for c in CODECS} | {(c, "all_reduce") for c in sums} | {("top_k", "gtopk_tree")}


def test_momentum_correction_wants_an_optimizer_with_momentum():
    with pytest.raises(IncompatibleParts, match="Adam"):
        train(SIMULATED, parse("top_k:feedback=momentum_correction"), Curve(), 2)


def test_momentum_correction_takes_the_momentum_and_learns():
    strategy = parse("top_k:feedback=momentum_correction")
    result = run(SIMULATED, Training(strategy=strategy, task=Digits(), steps=120, batch=64), 2).results[0]
    assert result["metric"]["accuracy"] > 0.8


def test_signs_with_error_feedback_learn():
    task = DigitsAtRate(rate=0.1, momentum=0.0)
    result = run(SIMULATED, Training(strategy=parse("sign_sgd"), task=task, steps=200, batch=64), 2).results[0]
    assert result["metric"]["accuracy"] > 0.85


def test_shared_scales_hold_127_workers():
    with pytest.raises(StrategyError, match="at most 127 workers"):
        parse("terngrad").roles(128)


@pytest.mark.parametrize("text", ["top_k:density=0", "gtop_k:density=1.5", "qsgd:levels=128", "powersgd:rank=0"])
def test_numbers_out_of_range_are_refused(text):
    with pytest.raises(StrategyError, match="give"):
        parse(text)


# A loss that is not finite


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)
def test_no_codec_drops_news_in_the_first_element(codec, bad):
    x = numbers()
    x[0] = bad
    out = decoded(codec, encoded(codec, x))
    codec.conclude(out)
    assert not out[0].isfinite()
    again = decoded(codec, encoded(codec, numbers()))
    codec.add(Payload(encoded(codec, x).sent, encoded(codec, x).known), FLAT, again)
    assert not again[0].isfinite()


def test_the_backend_sums_what_adds_up():
    gradients = [numbers(seed, 50) for seed in range(2)]
    total = exchange(AllReduce(), RandomK(density=1.0), gradients)[0][0][0]
    assert torch.equal(total, gradients[0] + gradients[1])


# In a user's loop


def attached_loop(text, steps, saved=None):
    """(weights, the optimizer's momentum inside and after, attachment's and optimizer's state) of both workers."""

    def main(ctx):
        task, strategy = Golden(), parse(text)
        model = task.model(ctx.seed)
        optimizer = task.optimizer(model.parameters())
        batches = task.batches(ctx.rank, 2, 8, seed=3)
        if saved:
            model.load_state_dict(saved[ctx.rank][2]["model"])
            optimizer.load_state_dict(saved[ctx.rank][2]["optimizer"])
            batches.load_state_dict(saved[ctx.rank][2]["batches"])
        with geartrain.attach(strategy, model, optimizer, ctx):
            if saved:
                geartrain.attached(optimizer).load_state_dict(saved[ctx.rank][2]["attachment"])
            for _ in range(steps):
                optimizer.zero_grad()
                task.loss(model, batches.take()).backward()
                optimizer.step()
            inside = optimizer.param_groups[0]["momentum"]
            state = {"model": model, "optimizer": optimizer, "batches": batches}
            state["attachment"] = geartrain.attached(optimizer)
            state = copy.deepcopy({name: part.state_dict() for name, part in state.items()})
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        return weights, (inside, optimizer.param_groups[0]["momentum"]), state

    return SIMULATED.run(main, CLUSTER, workers=2).results


def test_an_attached_loop_gets_its_momentum_back():
    momenta = attached_loop("top_k:feedback=momentum_correction", 2)[0][1]
    assert momenta == (0.0, 0.5)


@pytest.mark.parametrize(
    "text",
    ["top_k:density=0.1,bucket_size=64B", "gtop_k:density=0.1", "powersgd:rank=1,min_ratio=0.0", "qsgd", "mg_wfbp"],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_an_attached_loop_goes_on_where_it_was_saved(text, steps):
    whole = attached_loop(text, 5)
    rest = attached_loop(text, 5 - steps, saved=attached_loop(text, steps))
    for mine, other in zip(rest, whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine[0], other[0], strict=True))
