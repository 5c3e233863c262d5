"""The public functions that have to know the engines."""

from __future__ import annotations

from geartrain.engines.own_script import script_context
from geartrain.engines.simulated import script_rank
from geartrain.runtime.context import Context
from geartrain.sim.kernel import current_activity


def init() -> Context:
    """The world of this rank, in a script of your own.

    Under torchrun, or another launcher that sets RANK and WORLD_SIZE, and under `geartrain run`: the processes of the
    run, on the backend of the default process group. The group is made here if the script has not made it, with NCCL
    where each rank has a CUDA device of its own, else gloo. Under `geartrain simulate`: the simulated rank. Without a
    launcher: a world of one.

    All ranks call it at the same point, for it makes a group; later calls give the same context, until the default
    group is another.

    Example:
        ctx = geartrain.init()
        print(ctx.rank, ctx.num_workers, ctx.device)
    """
    activity = current_activity()
    return script_context() if activity is None else script_rank(activity)
