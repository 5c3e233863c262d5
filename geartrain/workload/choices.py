"""Choices that change a workload: its data type, and what it keeps for backward."""

from __future__ import annotations

from geartrain.workload.spec import Workload


def with_dtype(workload: Workload, dtype: str) -> Workload:
    """The workload in another type: "fp32", "tf32", "bf16", "fp16" or "bf16_mixed"."""
    raise NotImplementedError("a workload's type cannot be chosen yet")


def checkpointed(workload: Workload, which: str) -> Workload:
    """The workload with activations computed again in backward: of "none", "blocks" or "all"."""
    raise NotImplementedError("checkpointing cannot be chosen yet")
