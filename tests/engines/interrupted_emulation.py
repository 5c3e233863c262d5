"""A program of its own: runs emulated ranks until it gets Ctrl-C, then prints what came back."""

from geartrain.cluster import ServicePlace, Star, Wire
from geartrain.engines.emulated import EmulatedEngine
from tests.emu.possible import cluster
from tests.engines import programs

if __name__ == "__main__":
    star = cluster(Star(wire=Wire(rate="100 Mbit/s", latency="50 us")))
    record = EmulatedEngine().run(programs.long_run, star, workers=2, services=[ServicePlace("server")])
    steps = [len(log.steps) for log in record.logs]
    print(record.interrupted, min(steps) > 0, [log.role for log in record.logs], record.engine)
