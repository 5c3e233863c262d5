"""Whether emulated networks can be built here, and what of them is left."""

import functools
import os
import subprocess
import sys
from pathlib import Path

from geartrain.cluster import Cluster, Device, NodeGroup, Overrides
from geartrain.emu.cleanup import MARK

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


def networks() -> set[str]:
    """All network namespaces that some process of this host lives in."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(process))
        except OSError:
            continue
    return found


def devices() -> set[str]:
    """Network devices of the host's own network."""
    return set(os.listdir("/sys/class/net"))


def marked_processes() -> set[int]:
    """Processes of any emulated run of this user."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes()
        except OSError:
            continue
        if f"{MARK}=".encode() in environ:
            found.add(int(process.name))
    return found


def stand() -> tuple[set[str], set[str], set[int]]:
    """What a run must leave as it was."""
    return networks(), devices(), marked_processes()
