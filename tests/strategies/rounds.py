"""Times of rounds of local updates, on shapes alone: t_c of a step and A of an all-reduce can be set."""

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.record.split import split
from geartrain.runtime.loop import Training
from geartrain.strategies import closed_forms, parse
from geartrain.tasks.workload_task import WorkloadTask
from geartrain.validation.quantities import load_table, workload_of

NUMEL = 4_000_000
BATCH = 64


def cluster(ratio, workers=4, nodes=()):
    """A cluster on which an all-reduce takes `ratio` times as long as a step of `workload()` on `workers` workers."""
    fast = load_table({"base": "ethernet-10g", "topology": {"wire": {"latency": "0 us", "rate": "10 GB/s"}}})
    seconds, _ = closed_forms.native_all_reduce(Placement(fast, workers), NUMEL, workload())
    rate = 10e9 * seconds / (ratio * step(fast, workers))
    wire = {"latency": "0 us", "rate": f"{rate / 1e3!r} kB/s"}
    changed = {"base": "ethernet-10g", "topology": {"wire": wire}}
    return load_table({**changed, "overrides": {"nodes": list(nodes)}} if nodes else changed)


def workload():
    """One tensor and much computing, so that merging models is next to nothing."""
    return workload_of({"parameters": NUMEL, "forward": "50 GFLOP"})


def step(place_cluster, workers=4):
    """t_c of one worker."""
    return parse("single").cost(workload(), Placement(place_cluster, 1), BATCH // workers).step_time


def simulate(text, place_cluster, workers=4, rounds=3):
    """The record of some rounds."""
    steps = rounds * parse(text).cycle
    training = Training(strategy=parse(text), task=WorkloadTask(workload()), steps=steps, batch=BATCH, evaluate=False)
    return SimulatedEngine(Roofline()).run(training, place_cluster, workers=workers, meta=True)


def round_time(text, place_cluster, workers=4):
    """Seconds of the last round."""
    cycle, record = parse(text).cycle, simulate(text, place_cluster, workers)
    ends = [max(log.steps[index].end for log in record.logs) for index in (-1 - cycle, -1)]
    return ends[1] - ends[0]


def waits(text, place_cluster, workers):
    """Per worker: seconds that it stood still for another one in the last round, of the whole round."""
    record = simulate(text, place_cluster, workers)
    last = parse(text).cycle
    return [sum(step.shares.wait for step in rank.steps[-last:]) for rank in split(record).ranks]
