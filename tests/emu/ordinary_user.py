"""A run in a process without privileges; prints what came of it."""

import json
import sys
from functools import partial
from pathlib import Path
from pickle import dumps

from geartrain.cluster import Placement, Star, Wire
from geartrain.emu.client import Station
from geartrain.emu.messages import Child
from geartrain.emu.plan import make_plan
from tests.emu import programs
from tests.emu.possible import cluster
from tests.emu.test_network import stream


def main(folder: Path) -> None:
    station = Station()
    plan = make_plan(Placement(cluster(Star(wire=Wire(rate="100 Mbit/s", latency="2 ms"))), 2))
    network = station.network(plan)
    rate, _ = stream(station, network, 0, 1, 8_000_000, folder, 12.5e6)
    who = folder / "who.json"
    station.run_children(network, [Child(1, {}, dumps(partial(programs.whoami, str(who))))], [1, 2], 5.0)
    station.close()
    told = {"right": station.right, "rate": rate, "delay_by": network.info.delay_by}
    print(json.dumps(told | json.loads(who.read_text())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
