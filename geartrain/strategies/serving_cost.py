"""The closed form of a step with one server that never waits for all, see `geartrain.strategies.serving`.

For W workers, M bytes of parameters, t_c seconds for a gradient and t_apply for an update with K gradients and the
copies of the replies:

    alone   = t_c + push + t_apply + pull                             K messages at once in push and in pull
    wire    = W M / B                                                 the busiest link of all pushes, or of all pulls
    serving = (W / K) t_apply,  + W M / B where replies are blocking
    step    = max(alone, wire, serving);   updates per second = W / (K step)

Bytes in flight are exposed communication: push, pull, and what the busiest link adds to them. The rest is waiting: for
the server's updates and in its queue. For workers alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ComputeModel, Work
from geartrain.cost.terms import Cost, Traffic
from geartrain.errors import StrategyError
from geartrain.strategies import closed_forms
from geartrain.strategies.closed_forms import Flow
from geartrain.strategies.serving import Serving, one_server
from geartrain.workload.spec import Workload


def serving_cost(
    serving: Serving,
    updating: float,
    workload: Workload,
    place: Placement,
    batch: int,
    model: ComputeModel,
    *,
    state: int,
    past: int = 0,
) -> Cost:
    """See the module.

    Args:
        updating: seconds of the server's optimizer.
        state: bytes of its state.
        past: models that a worker keeps beside its own.
    """
    _check_services(place)
    compute = closed_forms.slowest(workload, place, batch, model)
    workers, gather, nbytes = place.num_workers, serving.gather, workload.gradient_bytes
    server = workers
    pushes = [(worker, server, nbytes) for worker in range(workers)]
    pulls = [(server, worker, nbytes) for worker in range(workers)]
    push, pull = (closed_forms.travel(place, _farthest(place, flows, gather)) for flows in (pushes, pulls))
    apply = updating + _moving(serving, workload, place, model)
    alone = compute.gradient + push + apply + pull
    wire = max(_busy(place, pushes), _busy(place, pulls))
    busy = workers / gather * apply + (_busy(place, pulls) if serving.blocking else 0.0)
    return Cost(
        compute=compute.gradient,
        exposed_communication=push + pull + max(0.0, wire - alone),
        wait=apply + max(0.0, busy - max(alone, wire)),
        sent=(*[Traffic(nbytes=nbytes, messages=1)] * workers, Traffic(nbytes=workers * nbytes, messages=workers)),
        memory=closed_forms.worker_memory(
            workload, compute.samples, optimizer=0.0, gradients="moved", past=past * nbytes
        ),
        services=(_server_memory(serving, workload, workers, state),),
        notes=_notes(serving, workers),
    )


def _server_memory(serving: Serving, workload: Workload, workers: int, state: int) -> dict[str, int]:
    """A gradient of each worker and one for the update; replies are copies, or the model itself."""
    nbytes = workload.gradient_bytes
    replies = 0 if serving.blocking else workers * nbytes
    return closed_forms.server_memory(workload, nbytes, gradients=(1 + workers) * nbytes, state=state, replies=replies)


def _notes(serving: Serving, workers: int) -> tuple[str, ...]:
    notes = []
    if 1 < serving.gather < workers:
        notes.append("an estimate: who meets whom in an update depends on the workers' speeds")
    if serving.max_staleness is not None and serving.late == "block":
        notes.append("without what workers wait to keep the bound on staleness")
    return tuple(notes)


def _check_services(place: Placement) -> None:
    services = one_server().services
    if not closed_forms.services_match(place, services):
        raise StrategyError(
            f"one server on a node of its own is needed, and the placement has {len(place.services)} service(s).\n"
            "  make it with the services of strategy.roles(num_workers)"
        )


def _farthest(place: Placement, flows: list[Flow], count: int) -> list[Flow]:
    """The messages that take longest by themselves."""
    return sorted(flows, key=lambda flow: closed_forms.travel(place, [flow]), reverse=True)[:count]


def _busy(place: Placement, flows: Iterable[Flow]) -> float:
    """Seconds in which the busiest link is busy."""
    load: dict[int, int] = defaultdict(int)
    for source, target, nbytes in flows:
        for link in place.route(source, target).links:
            load[link] += nbytes
    return max((nbytes / place.links[link].capacity for link, nbytes in load.items()), default=0.0)


def _moving(serving: Serving, workload: Workload, place: Placement, model: ComputeModel) -> float:
    """Seconds in which the server gathers gradients and copies replies."""
    server, numel = place.num_workers, workload.num_parameters
    copies = 1 + (0 if serving.blocking else serving.gather)
    copy = Work("copy", 0.0, 2 * workload.gradient_bytes, workload.dtype)
    adding = (serving.gather - 1) * closed_forms.reduce_time(place, server, numel, workload, model)
    return copies * closed_forms.work_time(copy, place, server, model) + adding
