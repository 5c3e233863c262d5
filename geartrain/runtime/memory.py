"""What lives in memory during a step, beyond parameters and the optimizer's state."""

from __future__ import annotations

from torch import nn

from geartrain.runtime.meta import OptimizerFactory, Step
from geartrain.workload.spec import MemoryShape


def memory_shape(module: nn.Module, step: Step, optimizer: OptimizerFactory | None) -> MemoryShape | None:
    """The most that lives in each part of a step; None: it is not looked at, and a workload's activations stand for it.

    Args:
        module, step, optimizer: as for `geartrain.runtime.tracing.trace_step`.
    """
    return None
