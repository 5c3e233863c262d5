"""APAM: AMSGrad on a server that applies gradients one by one, as they come.

    worker:   g <- gradient at its copy of x;  send g;  x <- what the master replies
    master:   on a gradient g, as update k:
                  m    <- beta1 m + (1 - beta1) g
                  v    <- beta2 v + (1 - beta2) g * g
                  vhat <- max(vhat, v)                                          element by element
                  x    <- x - alpha_k m / (sqrt(vhat) + eps);   reply x

    alpha_k = rate                                     divided by sqrt(k) if step = "inverse_root"
              * sqrt(1 - beta2^k) / (1 - beta1^k)      with bias correction

Paper: Yangyang Xu and others, 2020, arXiv 2002.09095, algorithm 1 in the distributed version; the rule as in the
authors' code. Limits: one worker is serial AMSGrad.
Differs from the paper: bias correction and eps are the code's, the paper has neither (bias_correction=false,eps=1e-30);
no projection, as in its experiments; gradients arrive beside replies, and each is answered by itself, as in the Python
version; data are dealt to the workers, not drawn by each from all; a run is one epoch, with a last model for all at its
end. The version for shared memory, whose workers overwrite gradients that were not taken yet, is not here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel, Work
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Needs, Paper, Roles, Strategy
from geartrain.runtime.worker import Service, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import APAM as PAPER
from geartrain.strategies.serving import PushingWorker, Server, Serving, flat_model, one_server
from geartrain.strategies.serving_cost import serving_cost
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload

_SERVING = Serving(gather=1, max_staleness=None, late="drop", blocking=True)

_KERNELS = {"sgd": (1, 3), "momentum": (2, 6), "adam": (6, 17), "amsgrad": (7, 20)}
"""rule -> operations of one update, and tensors that they read and write together."""


@dataclass(frozen=True, kw_only=True)
class APAM(Strategy):
    """A master applies the workers' gradients one by one, by AMSGrad.

        m, v <- averages of g, g * g;   vhat <- max(vhat, v);   x <- x - alpha_k m / (sqrt(vhat) + eps)

    Args:
        rule: "amsgrad"; "adam", which takes v for vhat; "momentum", x <- x - alpha_k m; "sgd", x <- x - alpha_k g, the
            paper's baseline. The task's own optimizer is not used.
        rate: alpha, above 0; 1e-4 and 1e-3 in the authors' scripts.
        step: "constant", as in the networks' runs; "inverse_root", which theory takes.
        bias_correction: as in the authors' code, of the averages that the rule has; the paper has none.
        beta1, beta2: from 0, below 1; 0.9 and 0.999 in the authors' scripts.
        eps: above 0; 1e-8 in the authors' code, nothing in the paper, which 1e-30 comes to.
        weight_decay: is added to g times the master's x; 0 or more.
        max_delay: one worker computes every gradient at a model that is 0 to max_delay updates old, drawn uniformly
            from those that there are: the paper's way to study delay by itself. 0 for training with several workers.

    Costs, per step, for M bytes of parameters: a worker sends M in one message, the master W M in W messages. At the
    end of a run, outside steps, every worker sends two elements and gets M. The master holds 6 + W times M, a worker 2.

        step = max(t_c + 2 (alpha + M/B) + t_apply,  W (t_apply + M/B))

    Use it where adaptive rules are needed and workers should not wait. Speed-up is linear until the master's link or
    its updates are busy all the time; delays grow with W, and with them what a large rate loses.

    Example:
        >>> str(APAM(rate=1e-4, rule="adam"))
        'apam:rule=adam,rate=0.0001'

    Source: Xu and others, 2020, arXiv 2002.09095, and the authors' code, RPI-OPT/APAM; closed forms are derived.
    """

    name: ClassVar[str] = "apam"
    paper: ClassVar[Paper] = PAPER
    needs: ClassVar[Needs] = Needs(lanes=True, survives_loss=True)

    rule: Literal["amsgrad", "adam", "momentum", "sgd"] = "amsgrad"
    rate: float = 1e-3
    step: Literal["constant", "inverse_root"] = "constant"
    bias_correction: bool = True
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_delay: int = 0

    def __post_init__(self) -> None:
        check_fields(self, max_delay=0)
        if not self.rate > 0:
            raise StrategyError(f"apam: rate={self.rate!r} does not learn; give a number above 0")
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                raise StrategyError(f"apam: {key}={getattr(self, key)!r} is no average; give 0 or more, below 1")
        if not self.eps > 0:
            raise StrategyError(
                f"apam: eps={self.eps!r} divides by 0 where no gradient has been; give a number above 0, like 1e-30"
            )
        if not self.weight_decay >= 0:
            raise StrategyError(f"apam: weight_decay={self.weight_decay!r} is below 0; give 0 or more")

    def __str__(self) -> str:
        return render(self)

    def roles(self, num_workers: int) -> Roles:
        if self.max_delay and num_workers != 1:
            raise StrategyError(
                f"apam: max_delay={self.max_delay} draws the delays of one worker, and {num_workers} have delays of "
                "their own.\n  use one worker, or max_delay=0"
            )
        return one_server()

    def bind(self, ctx: Context, task: Task) -> Worker | Service:
        self.roles(ctx.num_workers)
        if ctx.role == "worker":
            past = _DrawnPast(self.max_delay, ctx.rng("delays")) if self.max_delay else None
            return PushingWorker(ctx, task, 1, past)
        _, _, flat = flat_model(ctx, task)
        return Server(_SERVING, ctx, flat, AdaptiveUpdate(self, flat))

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        kernels, tensors = _KERNELS[self.rule]
        if self.weight_decay:
            kernels, tensors = kernels + 1, tensors + 3
        numel, nbytes = workload.num_parameters, workload.gradient_bytes
        work = Work("update", kernels * numel, tensors * nbytes, workload.dtype, kernels)
        updating = closed_forms.work_time(work, place, place.num_workers, model)
        past = self.max_delay + 1 if self.max_delay else 0
        return serving_cost(_SERVING, updating, workload, place, batch, model, state=3 * nbytes, past=past)


class AdaptiveUpdate:
    """The master's rule; see the module.

    Args:
        flat: x, 1-D; updated in place.
    """

    def __init__(self, strategy: APAM, flat: Tensor) -> None:
        self._strategy, self._x, self._k = strategy, flat, 0
        self.gradient = torch.zeros_like(flat)
        self.m, self.v, self.vhat = (torch.zeros_like(flat) for _ in range(3))

    def apply(self, staleness: Sequence[int] = ()) -> None:
        """One update with `gradient`; how old it is does not matter to the rule."""
        s, g = self._strategy, self.gradient
        self._k += 1
        if s.weight_decay:
            g = g.add(self._x, alpha=s.weight_decay)
        if s.rule == "sgd":
            self._x.add_(g, alpha=-self._alpha())
            return
        self.m.lerp_(g, 1 - s.beta1)
        if s.rule == "momentum":
            self._x.add_(self.m, alpha=-self._alpha())
            return
        self.v.mul_(s.beta2).addcmul_(g, g, value=1 - s.beta2)
        if s.rule == "amsgrad":
            torch.maximum(self.vhat, self.v, out=self.vhat)
        second = self.vhat if s.rule == "amsgrad" else self.v
        self._x.addcdiv_(self.m, second.sqrt().add_(s.eps), value=-self._alpha())

    def _alpha(self) -> float:
        s, k = self._strategy, self._k
        alpha = s.rate / math.sqrt(k) if s.step == "inverse_root" else s.rate
        if not s.bias_correction or s.rule == "sgd":
            return alpha
        second = 1.0 if s.rule == "momentum" else math.sqrt(1 - s.beta2**k)
        return alpha * second / (1 - s.beta1**k)

    def state_dict(self) -> dict[str, Any]:
        return {"k": self._k, "m": self.m, "v": self.v, "vhat": self.vhat}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._k = state["k"]
        for mine, saved in zip((self.m, self.v, self.vhat), (state["m"], state["v"], state["vhat"]), strict=True):
            mine.copy_(saved)


class _DrawnPast:
    """The last models, of which each gradient draws one.

    Args:
        longest: the largest delay.
        generator: draws.
    """

    def __init__(self, longest: int, generator: torch.Generator) -> None:
        self._models: deque[Tensor] = deque(maxlen=longest + 1)
        self._generator = generator

    def rewind(self, flat: Tensor) -> int:
        delay = int(torch.randint(len(self._models), (), generator=self._generator, device=self._generator.device))
        flat.copy_(self._models[-1 - delay])
        return delay

    def keep(self, flat: Tensor) -> None:
        self._models.append(flat.clone())

    def state_dict(self) -> dict[str, Any]:
        return {"models": list(self._models), "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._models.clear()
        self._models.extend(model.to(self._generator.device) for model in state["models"])
        self._generator.set_state(state["generator"])
