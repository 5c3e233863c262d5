"""The work of single operations by hand; real and meta tensors, first and second look alike."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from geartrain.runtime.opcost import FREE, OpCosts, work_of
from geartrain.torch_private import DispatchMode


class Recorder(DispatchMode):
    def __init__(self):
        super().__init__()
        self.costs, self.works = OpCosts(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        work = work_of(func, args, kwargs, out)
        assert self.costs(func, args, kwargs, out) == self.costs(func, args, kwargs, out) == work
        if work is not FREE:
            self.works.append(work)
        return out


def works(function, *shapes, device="meta", dtype=torch.float32):
    tensors = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
    with Recorder() as recorder:
        function(*tensors)
    return recorder.works


def work(function, *shapes, **options):
    (only,) = works(function, *shapes, **options)
    return only


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("function", "shapes", "flop", "elements"),
    [
        (torch.mm, [(2, 3), (3, 4)], 48, 6 + 12 + 8),
        (torch.bmm, [(5, 2, 3), (5, 3, 4)], 240, 5 * 26),
        (torch.mv, [(2, 3), (3,)], 12, 6 + 3 + 2),
        (torch.add, [(6,), (6,)], 6, 18),
        (torch.add, [(6, 2), (2,)], 12, 12 + 2 + 12),
        (torch.Tensor.add_, [(6,), (6,)], 6, 18),
        (lambda a: a.mul_(2), [(6,)], 6, 12),
        (lambda a, b: a.copy_(b), [(6,), (6,)], 0, 12),
        (lambda a: a.zero_(), [(6,)], 0, 6),
        (torch.sum, [(6,)], 6, 7),
        (torch.zeros_like, [(6,)], 0, 6),
        (lambda a: a.expand(6, 100) + 1, [(6, 1)], 600, 6 + 600),
        (lambda a, b: torch.cat([a, b]), [(6,), (4,)], 0, 20),
        (lambda a, b, out: torch.add(a, b, out=out), [(6,), (6,), (6,)], 6, 18),
        (F.conv2d, [(2, 3, 8, 8), (4, 3, 3, 3)], 2 * 2 * 36 * 4 * 27, 2 * 3 * 64 + 4 * 27 + 2 * 4 * 36),
    ],
)
def test_by_hand(function, shapes, flop, elements, device):
    done = work(function, *shapes, device=device)
    assert (done.flop, done.nbytes, done.num_kernels) == (flop, 4 * elements, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.view(3, 2).t()[0].detach().unsqueeze(0),
        lambda a: a.unsqueeze_(0).split(2, dim=1),
        lambda a: torch.empty_like(a).new_empty(3),
        lambda a: torch.ones_like(a[0]),
    ],
)
def test_views_and_fresh_memory_are_free(function):
    assert works(function, (6,)) == []


def test_gathering_reads_what_it_takes():
    index = torch.zeros(3, dtype=torch.long, device="meta")
    assert work(lambda a: F.embedding(index, a), (100, 5)).nbytes == 3 * 8 + 2 * 4 * 15
    source = torch.zeros(3, 5, device="meta")
    assert work(lambda a: a.index_add_(0, index, source), (100, 5)).nbytes == 3 * 8 + 3 * 4 * 15


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.float64, "fp64"), (torch.bfloat16, "bf16"), (torch.int64, "fp32"), (torch.int8, "int8")],
)
def test_types(dtype, name):
    done = work(torch.add, (6,), (6,), dtype=dtype)
    assert (done.dtype, done.nbytes) == (name, 18 * dtype.itemsize)


def test_key_tells_operation_shapes_and_types():
    done = work(torch.mm, (2, 3), (3, 4))
    assert done.key == ("aten.mm.default", ((2, 3), (3, 4), (2, 4)), ("float32", "float32", "float32"))


def test_attention_counts_its_products():
    forward, *_ = works(F.scaled_dot_product_attention, *[(2, 4, 16, 8)] * 3, device="cpu")
    assert forward.flop == 2 * (2 * 4 * 16 * 16 * 8 * 2)


def test_backward_of_a_convolution_counts_the_gradients_asked_for():
    def flop_of_backward(wants_input):
        def run(x):
            conv = nn.Conv2d(3, 4, 3, bias=False, device="meta")
            conv(x.requires_grad_(wants_input)).sum().backward()

        return sum(done.flop for done in works(run, (2, 3, 8, 8)) if "convolution_backward" in done.name)

    assert flop_of_backward(True) == 2 * flop_of_backward(False) == 4 * (2 * 36 * 4 * 27) * 1.0


def test_a_sparse_tensor_has_a_cost_too():
    sparse = torch.eye(4).to_sparse()
    with Recorder() as recorder:
        _ = sparse * 2.0
    assert all(done.nbytes > 0 for done in recorder.works)


def test_changing_numbers_leave_the_memory_small():
    costs, add, a = OpCosts(), torch.ops.aten.add_.Tensor, torch.zeros(3)
    for step in range(5):
        costs(add, (a, a), {"alpha": -0.1 * step}, a)
    assert len(costs._known) == 1
