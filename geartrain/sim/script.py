"""`simulate_script`: any script written for `torchrun`, unchanged, under the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from geartrain.cluster.placement import Placement
from geartrain.cluster.spec import Cluster
from geartrain.cost.compute import ComputeModel
from geartrain.errors import RankFailed, ScriptError
from geartrain.record.log import RunRecord
from geartrain.runtime.places import is_users
from geartrain.sim.explain import Explainer
from geartrain.sim.fabric import Fabric
from geartrain.sim.kernel import current_activity
from geartrain.sim.process import MainModule, NumpyRandom, PythonRandom, process_of_ranks
from geartrain.sim.process_group import BACKEND
from geartrain.sim.ranks import Ranks, run_ranks, simulated_process
from geartrain.sim.store import SimulatedStore
from geartrain.torch_private import redirected_groups


def simulate_script(
    script: str,
    args: Sequence[str],
    cluster: Cluster,
    ranks: int,
    *,
    compute: ComputeModel | None = None,
    real_clock: bool = False,
    seed: int = 0,
    algorithms: Mapping[str, str] | None = None,
) -> RunRecord:
    """Run a script on `ranks` simulated devices of a cluster.

    Args:
        script: a Python file that reads RANK, WORLD_SIZE and so on from its environment, as under torchrun.
        args: what it finds in `sys.argv` behind its own name.
        cluster: the machines and links.
        ranks: one per device, node by node.
        compute: prices operations; None makes compute free.
        real_clock: `time.time`, `sleep` and the like stay real.
        seed: of the ranks' `random` and `numpy.random` states, of jitter and stragglers. Torch's state starts, as in
            every new process, from torch's own default seed.
        algorithms: collective kind -> algorithm, instead of the choice by size.

    Raises ScriptError, DeadlockError, CollectiveMismatch, RankFailed; the last three carry the record so far.
    """
    path = Path(script).resolve()
    code = _compiled(path)
    explain = Explainer()
    fabric = explain.fabric = Fabric(Placement(cluster, ranks), dict(algorithms or {}), explain)
    store = SimulatedStore(fabric)
    mains = MainModule(path, list(args))
    group = Ranks(fabric, seed, compute, [PythonRandom(seed), NumpyRandom(seed), mains])

    def place() -> tuple[SimulatedStore, int, int] | None:
        activity = current_activity()
        return None if activity is None else (store, activity.rank, ranks)

    def body(rank: int) -> Callable[[], Any]:
        return lambda: _run_as_main(mains, code, rank)

    environments = {rank: _environment(fabric.placement, rank) for rank in range(ranks)}
    with (
        simulated_process(),
        redirected_groups(BACKEND, place),
        process_of_ranks(path, environments, real_clock=real_clock, is_users=is_users),
    ):
        for rank in range(ranks):
            group.start(rank, "worker", body(rank))
        return run_ranks(group)


def _compiled(path: Path) -> Any:
    try:
        return compile(path.read_bytes(), str(path), "exec")
    except OSError as error:
        raise ScriptError(f"cannot read {str(path)!r}: {error.strerror}; give the path of a Python script") from error
    except SyntaxError as error:
        raise ScriptError(f"{path}:{error.lineno}: {error.msg}; the script is not valid Python") from error


def _run_as_main(mains: MainModule, code: Any, rank: int) -> None:
    """Run the script as the rank's `__main__`; `sys.exit` with a status other than 0 fails the rank."""
    try:
        exec(code, mains.of(rank).__dict__)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise RankFailed(
                f"rank {rank} left early, with exit status {leaving.code}; a rank must reach the end of its script",
                rank=rank,
            ) from leaving


def _environment(placement: Placement, rank: int) -> dict[str, str]:
    """What torchrun would put into the environment of this rank."""
    node = placement.node(rank)
    peers = [other for other in range(placement.num_ranks) if placement.node(other) == node]
    nodes = sorted({placement.node(other) for other in range(placement.num_ranks)})
    values = {
        "RANK": rank,
        "WORLD_SIZE": placement.num_ranks,
        "LOCAL_RANK": peers.index(rank),
        "LOCAL_WORLD_SIZE": len(peers),
        "GROUP_RANK": nodes.index(node),
        "GROUP_WORLD_SIZE": len(nodes),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": placement.num_ranks,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": "simulated",
        "OMP_NUM_THREADS": 1,
    }
    return {name: str(value) for name, value in values.items()}
