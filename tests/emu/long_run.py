"""A program that emulates until it is ended; prints its run and its station."""

import json
import sys
from functools import partial
from pathlib import Path
from pickle import dumps

from geartrain.emu.client import Station
from geartrain.emu.messages import Child
from tests.emu import programs
from tests.emu.test_cleanup import PLAN


def main(folder: Path, orphan: bool) -> None:
    station = Station()
    network = station.network(PLAN)
    print(json.dumps({"run": station.run, "station": station._process.pid}), flush=True)
    children = [Child(1, {}, dumps(partial(programs.sleep, 60.0, str(folder / "ready"))))]
    if orphan:
        children.append(Child(0, {}, dumps(partial(programs.leave_somebody_behind, str(folder / "pid")))))
    station.run_children(network, children, [1, 2], 5.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "orphan" in sys.argv)
