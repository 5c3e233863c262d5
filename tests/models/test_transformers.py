"""What transformers see: attention against torch's own, order in time, turned places, tied heads."""

import pytest
import torch
from torch.nn import functional as F

from geartrain.models.attention import SelfAttention
from geartrain.models.bert import bert
from geartrain.models.gpt2 import GPT2Size, gpt2
from geartrain.models.llama import LlamaSize, Turn, llama

WORDS = torch.tensor([[3, 1, 4, 1, 5, 9]])


def small_gpt2(tied=True):
    return gpt2(GPT2Size(width=8, depth=2, num_heads=2, vocabulary=11, length=6, dropout=0.0, tied=tied))


def small_llama(**more):
    return llama(LlamaSize(width=8, depth=2, num_heads=2, inner=12, vocabulary=11, length=6, **more))


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
