"""Whether two results are the same: to the bit, or to a tolerance where one is stated."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def assert_same(got: Any, expected: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Compare nested results; tensors also by type and shape, and without a tolerance to the bit (-0.0 is not 0.0)."""
    assert type(got) is type(expected), f"{got!r} against {expected!r}"
    if isinstance(got, torch.Tensor):
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
        if rtol == atol == 0.0 and got.is_floating_point():
            assert torch.equal(torch.signbit(got), torch.signbit(expected))
    elif isinstance(got, float):
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    elif isinstance(got, Mapping):
        assert list(got) == list(expected)
        for key in got:
            assert_same(got[key], expected[key], rtol, atol)
    elif isinstance(got, Sequence) and not isinstance(got, str | bytes):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other, rtol, atol)
    else:
        assert got == expected
