"""Models that cannot be traced: which line, why, what to do."""

import pytest
import torch
from torch import nn

from geartrain.errors import TaskError
from geartrain.runtime.tracing import trace_workload
from geartrain.runtime.untraceable import explained


class Decides(nn.Linear):
    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        return super().forward(x)


class TakesOut(nn.Linear):
    def forward(self, x):
        factor = x.mean().item()
        return super().forward(x) * factor


class ToNumpy(nn.Linear):
    def forward(self, x):
        return super().forward(torch.tensor(x.numpy() * 2))


class Selects(nn.Linear):
    def forward(self, x):
        positive = x[x > 0]
        return super().forward(x) + positive.mean()


class FromOutside(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.ones(2, device="cpu")


class DoesNotFit(nn.Linear):
    def forward(self, x):
        return super().forward(x) @ x


class Inside(nn.Module):
    """The line is that of the part, not of the whole."""

    def __init__(self, *sizes):
        super().__init__()
        self.part = Decides(*sizes)

    def forward(self, x):
        return self.part(x)


def told(kind):
    with pytest.raises(TaskError) as caught:
        trace_workload(kind(4, 2), [torch.empty(1, 4)], lambda out: out.sum(), name="mine", source="-")
    place, _, reason = str(caught.value).partition(": ")
    file, _, line = place.partition(":")
    assert file == "test_untraceable.py"
    with open(__file__, encoding="utf-8") as source:
        assert source.read().splitlines()[int(line) - 1].strip() in reason
    return reason


@pytest.mark.parametrize("kind", [Decides, Inside])
def test_a_branch_on_values(kind):
    assert told(kind) == (
        '"if x.sum() > 0:" decides by the values of a tensor, and a traced step has shapes only; '
        "use torch.where, or give the branch as a setting"
    )


@pytest.mark.parametrize(
    ("kind", "line", "reason"),
    [
        (TakesOut, "factor = x.mean().item()", "takes a number out of a tensor"),
        (ToNumpy, "return super().forward(torch.tensor(x.numpy() * 2))", "takes a number out of a tensor"),
        (Selects, "positive = x[x > 0]", "has a result whose size depends on the values of a tensor"),
        (FromOutside, 'return super().forward(x) + torch.ones(2, device="cpu")', "mixes a tensor made outside"),
        (DoesNotFit, "return super().forward(x) @ x", "fails on a step of shapes alone: RuntimeError: "),
    ],
)
def test_other_lines(kind, line, reason):
    assert told(kind).startswith(f'"{line}" {reason}')


def test_a_loss_of_the_users():
    with pytest.raises(TaskError, match=r'test_untraceable.py:\d+: ".*loss.*" takes a number out of a tensor'):
        trace_workload(nn.Linear(4, 2), [torch.empty(1, 4)], lambda loss: float(loss.sum()), name="mine", source="-")


def test_what_has_no_line_names_the_model():
    with pytest.raises(TaskError, match=r"^mine: it fails on a step of shapes alone: RuntimeError: "):
        trace_workload(nn.Linear(4, 2), [torch.empty(1, 5)], lambda out: out.sum(), name="mine", source="-")


def test_our_own_errors_stay():
    with pytest.raises(TaskError, match=r"^as it is$"), explained("mine"):
        raise TaskError("as it is")
