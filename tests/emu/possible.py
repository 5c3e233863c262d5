"""Whether emulated networks can be built here, and what of them is left."""

import functools
import os
import secrets
import subprocess
import sys
from pathlib import Path

from geartrain.cluster import Cluster, Device, NodeGroup, Overrides
from geartrain.emu.cleanup import MARK

TESTS = "GEARTRAIN_TESTS"
os.environ.setdefault(TESTS, secrets.token_hex(8))  # all that these tests start inherits it

_TRY = "from geartrain.emu.namespaces import enter_own_network, new_network; enter_own_network(); new_network()"


@functools.cache
def why_not() -> str | None:
    """None if they can."""
    done = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, text=True, timeout=60)
    return None if done.returncode == 0 else f"no network namespaces here: {done.stderr.strip().splitlines()[-1]}"


def cluster(topology, count=8, devices=1, overrides=None, flops=1e12) -> Cluster:
    device = Device(name="device", flops={"fp32": flops}, memory=1 << 30, memory_rate=1e11, source="chosen")
    nodes = (NodeGroup(count=count, devices_per_node=devices, device=device),)
    return Cluster(name="test", source="chosen", nodes=nodes, topology=topology, overrides=overrides or Overrides())


def networks(spared: set[int]) -> set[str]:
    """All network namespaces that some process of this host lives in, but for some processes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if int(process.parts[2]) not in spared:
                found.add(os.readlink(process))
        except OSError:
            continue
    return found


def devices() -> set[str]:
    """Network devices of the host's own network."""
    return set(os.listdir("/sys/class/net"))


def marked_processes() -> tuple[set[int], set[int]]:
    """Processes of emulated runs: of these tests, and of others on the same machine, which come and go."""
    ours, others = set(), set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(entry.startswith(f"{MARK}=".encode()) for entry in environ):
            mine = f"{TESTS}={os.environ[TESTS]}".encode() in environ
            (ours if mine else others).add(int(process.name))
    return ours, others


def stand() -> tuple[set[str], set[str], set[int]]:
    """What a run must leave as it was."""
    ours, others = marked_processes()
    return networks(others), devices(), ours
