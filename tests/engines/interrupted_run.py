"""A program of its own: runs ranks until it gets Ctrl-C, then prints what came back."""

import sys

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import ServicePlace
from geartrain.engines.real import RealEngine
from tests.engines import programs

if __name__ == "__main__":
    record = RealEngine().run(
        programs.long_run, load_cluster("ethernet-1g"), workers=2, services=[ServicePlace("server")]
    )
    steps = [len(log.steps) for log in record.logs]
    print(record.interrupted, min(steps) > 0, [log.role for log in record.logs], record.results)
    sys.exit(0)
