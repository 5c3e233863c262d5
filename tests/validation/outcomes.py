"""Hand-made cells: what came of a case without running it."""

from geartrain.cluster import load_cluster
from geartrain.strategies import parse
from geartrain.validation.cells import Outcome, Step
from geartrain.validation.grid import Case

CLUSTER = load_cluster("ethernet-1g")


def case(strategy="synchronous", **changes):
    values = {"grid": "g", "engine": "emulated", "judged": True, "task": "digits", "cluster": CLUSTER, "workers": 2}
    return Case(**{**values, "strategy": parse(strategy), "batch": 8, "steps": 3, "seed": 0, **changes})


def step(seconds, compute=0.5, exposed=0.25, wait=0.25):
    return Step(
        step_time=seconds,
        compute=compute,
        exposed_communication=exposed,
        wait=wait,
        hidden_communication=0.0,
        bytes_sent=100,
        messages=2,
    )


def outcome(simulated=1.0, measured=1.0, *, on=None, **changes):
    """A trustworthy cell: bytes take 10 times a small collective on a host that is half busy."""
    values = {"bandwidth_term": 0.1, "small_collective": 0.01, "host_busy": 0.5, **changes}
    return Outcome(case=on or case(), simulated=step(simulated), measured=step(measured), **values)
