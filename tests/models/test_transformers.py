"""What transformers see: attention against torch's own, order in time, turned places, tied heads."""

import pytest
import torch
from torch.nn import functional as F

from geartrain.models.attention import SelfAttention
from geartrain.models.bert import bert
from geartrain.models.gpt2 import GPT2Size, gpt2
from geartrain.models.llama import LlamaSize, Turn, llama
from geartrain.models.preset import class_loss
from geartrain.models.settings import Settings
from geartrain.models.t5 import T5, Attention, T5Size, _buckets
from geartrain.models.traced import Model
from geartrain.models.traced import traced as traced_model
from geartrain.tasks.workload_task import WorkloadTask

SMALL_LLAMA = {"width": 8, "depth": 2, "num_heads": 2, "inner": 12, "vocabulary": 11, "length": 6}
WORDS = torch.tensor([[3, 1, 4, 1, 5, 9]])


def small_gpt2(**more):
    return gpt2(GPT2Size(width=8, depth=2, num_heads=2, vocabulary=11, length=6, dropout=0.0, **more))


def small_llama(**more):
    return llama(LlamaSize(**{**SMALL_LLAMA, **more}))


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("length", [None, 6])
def test_attention_equals_torchs(length):
    attention, x = SelfAttention(8, 2, length=length), torch.randn(3, 5, 8)
    q, k, v = (
        part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (attention.query, attention.key, attention.value)
    )
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=length is not None)
    expected = attention.out(seen.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected)


@pytest.mark.parametrize("length", [None, 5])
def test_fused_attention_is_the_same(length):
    explicit, fused = (SelfAttention(8, 4, length=length, num_groups=2, fused=fused) for fused in (False, True))
    fused.load_state_dict(explicit.state_dict())
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(explicit(x), fused(x))


def test_groups_of_heads_share_keys_and_values():
    """With the weights of two groups repeated for four heads, all heads of their own come to the same."""
    groups, heads = SelfAttention(8, 4, num_groups=2), SelfAttention(8, 4)
    weights = groups.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        weights[name] = weights[name].unflatten(0, (2, 2)).repeat_interleave(2, dim=0).flatten(0, 1)
    heads.load_state_dict(weights)
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(groups(x), heads(x))


def test_fused_attention_keeps_and_moves_no_scores():
    """Of what length squared grows with, only the FLOP are left: 4 and 8 of products, 2 that backward repeats."""
    length, width, depth = 64, 16, 2
    shape = {"width": width, "length": length}
    explicit = traced(lambda: small_llama(**shape), length)
    fused = traced(lambda: small_llama(**shape, fused=True), length)
    # Of two heads the sum of each row instead of the row.
    saved = 2 * length * (length - 1) * 4
    assert total(fused, "activation") == total(explicit, "activation") - depth * saved
    kernels = [k for layer in fused.layers for k in (*layer.forward_kernels, *layer.backward_kernels)]
    flash = [k.flop[1] for k in kernels if "flash" in k.op]
    assert flash == [4 * length**2 * width, 10 * length**2 * width] * depth
    assert total(fused, "recomputed_flop") == depth * 2 * length**2 * width


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("make", [small_gpt2, small_llama])
def test_products_are_those_that_are_counted_by_hand(make, fused):
    """6 N and 12 L H Q T for each token, with the parameters of products alone as N."""
    width, length, depth, vocabulary = 8, 6, 2, 11
    workload = traced(lambda: make(fused=fused), length)
    found = sum(
        kernel.count * kernel.flop[1]
        for layer in workload.layers
        for kernel in (*layer.forward_kernels, *layer.backward_kernels)
        if kernel.op.split(".")[1] in ("mm", "addmm", "bmm") or "flash" in kernel.op
    )
    inner = 2 * 4 * width if make is small_gpt2 else 3 * 12
    multiplied = depth * (4 * width**2 + inner * width) + vocabulary * width
    by_hand = length * (6 * multiplied + 12 * depth * width * length)
    assert found - total(workload, "recomputed_flop") == pytest.approx(by_hand, rel=1e-12)


def traced(make, length):
    with torch.device("meta"):
        model = Model(module=make(), inputs=[torch.empty(1, length, dtype=torch.long)], loss=class_loss)
    return traced_model(model, Settings(), name="small", source="chosen")


def total(workload, field):
    return sum(getattr(layer, field) for layer in workload.layers)


@pytest.mark.parametrize("make", [small_gpt2, small_llama])
def test_a_later_token_changes_no_earlier_score(make):
    model, other = make(), WORDS.clone()
    other[0, 4] = 2
    before, after = model(WORDS), model(other)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4], after[:, 4])
    assert before.shape == (1, 6, 11)


def test_bert_sees_all_tokens():
    model, other = bert(8, 2, 2, vocabulary=11, length=6).eval(), WORDS.clone()
    other[0, 5] = 2
    assert model(WORDS).shape == (1, 8)
    assert not torch.equal(model(WORDS), model(other))


def test_turned_products_depend_on_the_distance():
    turn = Turn(4, 9)
    q, k = (torch.randn(4).expand(9, 4) for _ in range(2))
    products = turn(q) @ turn(k).T
    for distance in (-3, 0, 2):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    torch.testing.assert_close(turn(q).norm(dim=-1), q.norm(dim=-1))
    assert torch.equal(turn(q)[0], q[0])


def test_a_tied_head_is_the_embedding():
    tied, untied = small_gpt2(), small_gpt2(tied=False)
    assert tied.head.weight is tied.embedding.token.weight
    numels = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert numels[1] - numels[0] == 11 * 8


def test_the_first_scores_of_gpt2_favour_nobody():
    model = gpt2(GPT2Size(width=64, depth=4, num_heads=4, vocabulary=11, length=6, dropout=0.0, tied=False))
    loss = F.cross_entropy(model(WORDS)[0], WORDS[0])
    assert float(loss.detach()) == pytest.approx(torch.tensor(11.0).log().item(), abs=0.15)


T5_SIZE = T5Size(width=8, depth=2, num_heads=2, inner=12, head_width=4, vocabulary=11, length=6)


def test_t5_decodes_in_order_and_sees_the_whole_text():
    model = T5(T5_SIZE)
    encoded = model.encoder(model.embedding(WORDS))
    other = WORDS.clone()
    other[0, 4] = 2
    before, after = (model.decoder(model.embedding(words), encoded) for words in (WORDS, other))
    assert torch.equal(before[:, :4], after[:, :4]) and not torch.equal(before[:, 4], after[:, 4])
    assert not torch.equal(encoded[:, 0], model.encoder(model.embedding(other))[:, 0])
    assert model(WORDS).shape == (1, 6, 11)


def test_t5_attention_is_torchs_without_scaling():
    attention, x, seen = Attention(T5_SIZE), torch.randn(3, 5, 8), torch.randn(3, 6, 8)
    bias = torch.randn(2, 5, 6)
    q, k, v = (
        part(of).unflatten(-1, (2, 4)).transpose(1, 2)
        for part, of in ((attention.query, x), (attention.key, seen), (attention.value, seen))
    )
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    torch.testing.assert_close(attention(x, seen, bias), attention.out(expected.transpose(1, 2).flatten(2)))


def test_distances_have_buckets():
    """Both ways 16 a side, 8 exact, then 8 + 8 ln(d / 8) / ln(16); one way 16 exact, then 16 + 16 ln(d / 16) / ln 8."""
    both = _buckets(torch.tensor([0, -3, 3, -7, 20, -20, 127, 500, -500]), 32, both_ways=True)
    assert both.tolist() == [0, 3, 19, 7, 26, 10, 31, 31, 15]
    one = _buckets(torch.tensor([5, 0, -1, -15, -20, -100, -500]), 32, both_ways=False)
    assert one.tolist() == [0, 0, 1, 15, 17, 30, 31]


def test_t5_products_by_hand():
    """For each token of a text: forward once and backward twice."""
    width, inner, heads, length, depth = 8, 12, 8, 6, 2
    workload = traced(lambda: T5(T5_SIZE), length)
    found = sum(
        kernel.count * kernel.flop[1]
        for layer in workload.layers
        for kernel in (*layer.forward_kernels, *layer.backward_kernels)
        if kernel.op.split(".")[1] in ("mm", "bmm")
    )
    attention = 4 * width * heads + 2 * length * heads
    block = 2 * width * inner
    assert found == 6 * length * (depth * (attention + block) + depth * (2 * attention + block) + 11 * width)
    names = [name for name, _ in WorkloadTask(workload).model(0).named_parameters()]
    assert names == [name for name, _ in T5(T5_SIZE).named_parameters()]
