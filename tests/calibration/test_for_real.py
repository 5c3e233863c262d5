"""Calibration of processes: this machine's loopback, and emulated wires whose rates are known."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest

from geartrain.calibration.calibrate import calibrate
from geartrain.calibration.effort import QUICK
from geartrain.calibration.pairs import TimePairs, all_pairs, ways
from geartrain.calibration.site import EngineSite
from geartrain.cli.one_cluster import constants
from geartrain.cluster import Overrides, Placement, Star, Wire, WireOverride, load_cluster, local_cluster, origin_of
from geartrain.engines.emulated import EmulatedEngine
from geartrain.engines.real import RealEngine
from tests.emu.possible import cluster

FEW = replace(QUICK, pings=50, messages=3, repeats=3, seconds=0.05, largest=1 << 22, product=256)


def measured(engine, given, ranks, effort=FEW):
    site = EngineSite(engine, given, ranks)
    return calibrate(site, sizes=[1 << 16], effort=effort, name="found", given=None, stage=lambda what: nullcontext())


@pytest.mark.multi
def test_two_processes():
    found = measured(RealEngine(device="cpu"), local_cluster(), 2)
    place = Placement(found.cluster, 2)
    assert 1e-6 < place.route(0, 1).latency < 0.1 and 1e7 < place.rate(0, 1) < 1e12
    flops = found.cluster.nodes[0].device.flops
    assert set(flops) == {"fp64", "fp32", "bf16", "fp16"} and all(1e7 < rate < 1e14 for rate in flops.values())
    assert 1e8 < found.cluster.measured.reduction_rate < 1e12
    assert found.cluster.measured.tiny_all_reduce > 0 and len(found.predictions) == 7
    sharing, curve = found.cluster.measured.sharing_of(2), found.cluster.measured.curve_of("all_reduce", 2)
    assert 1 <= sharing.slowdown < 20 and 0 <= sharing.steals <= 1 and 1e-6 <= curve.seconds(4096) < 1
    assert found.cluster.collectives == local_cluster().collectives
    assert [key for key, _ in constants(found.cluster) if origin_of(key, found.cluster.origins) is None] == []
    assert "no network" in found.notes[0] and "engine real" in found.cluster.origins["topology.wire.rate"]


@pytest.mark.slow
@pytest.mark.multi
def test_as_ranks_of_a_launcher(tmp_path):
    """Two processes with torchrun's variables: one writes and tells, the other is silent."""
    out, port = tmp_path / "lab.toml", str(20000 + os.getpid() % 20000)
    command = [sys.executable, "-m", "geartrain", "calibrate", "--quick", "--sizes", "4 KiB", "--json"]
    ranks = []
    for rank in range(2):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": ""}
        ranks.append(
            subprocess.Popen(
                [*command, "--out", str(out)],
                env={**os.environ, **variables, **place},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    assert json.loads(told[0][0])["cluster"]["measured"]["ranks"] == 2
    assert told[1][0] == ""
    found = load_cluster(out)
    assert found.name == "lab" and found.measured.ranks == 2
    assert (tmp_path / "lab.compute.json").exists()


@pytest.mark.emu
def test_emulated_wires_have_the_goodput_of_their_rates():
    wire, slow = Wire(rate="200 Mbit/s", latency="0 s", mtu="1500 B"), "100 Mbit/s"
    given = cluster(Star(wire=wire), 3, overrides=Overrides(wires=(WireOverride(node=2, rate=slow),)))
    before, engine = Placement(given, 3), EmulatedEngine()
    effort = replace(FEW, seconds=0.1)
    try:
        after = Placement(measured(engine, given, 3, effort).cluster, 3)
        rates = {pair: after.rate(*pair) for pair in all_pairs(3)}
        off = deviations(rates, before)
        for _ in range(3):  # a busy host stops a short message now and then
            if max(off) <= 0.05:
                break
            times = EngineSite(engine, given, 3).run(TimePairs(all_pairs(3), effort))
            found = ways({pair: one for rank in times for pair, one in rank.items()})
            off = deviations({pair: way.rate for pair, way in found.items()}, before)
    finally:
        engine.close()
    assert max(off) <= 0.05, off


def deviations(rates, place):
    return [abs(rate / place.rate(*pair) - 1) for pair, rate in rates.items()]
