"""Live bytes of a step on shapes, by hand and against the allocations of real tensors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from geartrain.cost.memory import highest
from geartrain.models.gpt2 import GPT2Size, gpt2
from geartrain.runtime.memory import Footprint, measured_peak, upper_envelope
from geartrain.runtime.tracing import trace_step


def memory_shape(model, step, optimizer):
    return trace_step(model, step, name="made", source="here", optimizer=optimizer).memory


def line(model, samples):
    return model(torch.empty(samples, 4, device=next(model.parameters()).device)).sum()


def test_of_a_linear_layer_by_hand():
    """4 -> 3 without bias: inputs of 16 bytes a sample, outputs of 12, one gradient of 48 bytes, a loss of 4."""
    shape = memory_shape(nn.Linear(4, 3, bias=False), line, None)
    assert (shape.buffers, shape.update) == (0, 0)
    assert shape.forward == ((4.0, 28.0),)  # the sum is there before the outputs go
    # The outputs have gone. The loss, the gradient that backward starts from, and that of the weights.
    assert shape.backward_fresh == ((4.0 + 4.0 + 48.0, 16.0),)
    assert shape.backward_kept == shape.backward_fresh  # it is not moved before it is made


def test_gradients_that_have_moved_are_left_out():
    """Two layers of 4 x 4: when the gradient of the first is made, that of the second has moved."""
    shape = memory_shape(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)), line, None)
    # No samples: the loss, what backward starts from, and the gradients of 64 bytes.
    assert highest(shape.backward_fresh, 0) == 4 + 4 + 2 * 64
    assert highest(shape.backward_kept, 0) == 4 + 4 + 64


def test_buffers_and_what_is_not_trained():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0].bias.requires_grad_(False)
    shape = memory_shape(model, line, None)
    assert shape.buffers == 16 + 2 * 16 + 8  # the bias; mean, variance, and how many batches there were (int64)


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False), 0),  # all in place
        (lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True), 1),  # roots of all second moments at a time
    ],
)
def test_temporaries_of_an_update(optimizer, copies):
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20))
    nbytes = sum(p.nbytes for p in model.parameters())
    update = memory_shape(model, lambda m, n: m(torch.empty(n, 40, device="meta")).sum(), optimizer).update
    assert update == pytest.approx(copies * nbytes, abs=100)


class Small(nn.Module):
    """Convolutions, normalisation and pooling; a large layer at the end."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(8 * 16 * 16, 300)

    def forward(self, x):
        return self.head(self.body(x))


def classified(model, samples):
    device = next(model.parameters()).device
    scores = model(torch.zeros(samples, 3, 32, 32, device=device))
    return F.cross_entropy(scores, torch.zeros(samples, dtype=torch.long, device=device))


def spoken(model, samples):
    words = torch.zeros(samples, 16, dtype=torch.long, device=next(model.parameters()).device)
    return F.cross_entropy(model(words).flatten(0, 1), words.flatten())


def language_model():
    return gpt2(GPT2Size(width=32, depth=2, num_heads=2, vocabulary=64, length=16, dropout=0.1))


@pytest.mark.parametrize("samples", [1, 3, 40])
@pytest.mark.parametrize(("make", "step"), [(Small, classified), (language_model, spoken)])
def test_as_many_bytes_as_real_tensors_take(make, step, samples):
    """The batches are others than those that are traced; what the profiler counts knows nothing of shapes."""
    model = make()

    def run():
        step(model, samples).backward()

    run()
    for p in model.parameters():
        p.grad = None
    shape = memory_shape(model, step, None)
    predicted = max(highest(shape.forward, samples), highest(shape.backward_fresh, samples))
    assert predicted == pytest.approx(measured_peak(run), rel=0.02)


def test_the_fullest_moment_changes_with_the_batch():
    """Few samples: the gradient of the large layer is being made. Many: that of the first activations."""
    (large_layer, few), (small, many) = memory_shape(Small(), classified, None).backward_kept
    assert large_layer > 8 * 16 * 16 * 300 * 4 > small and few < many


def test_measured_peak_by_hand():
    def run():
        kept = [torch.empty(1000)]
        kept.append(torch.empty(500))
        del kept[0]
        kept.append(torch.empty(200, dtype=torch.float64))

    assert measured_peak(run) == 6000
    assert measured_peak(lambda: None) == 0


def test_a_footprint_leaves_out_what_was_there():
    there = torch.empty(100, device="meta")
    footprint = Footprint()
    with footprint:
        there.add_(1)
        half = there[:50]
        torch.add(half, 1, out=there[50:])
        made = there * 2
        made = made + 1
    assert (footprint.live, footprint.most) == (400, 800)
    del made
    assert footprint.live == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), min_size=1, max_size=12), st.integers(1, 400))
def test_an_envelope_is_the_highest_of_all_lines(lines, samples):
    envelope = upper_envelope([(float(fixed), float(each)) for fixed, each in lines])
    assert highest(envelope, samples) == max(fixed + samples * each for fixed, each in lines)
    assert len(envelope) <= len(lines)
