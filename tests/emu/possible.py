"""Whether emulated networks can be built here, and what of them is left."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

from geartrain.cluster import Cluster, Device, NodeGroup, Overrides
from geartrain.emu.cleanup import MARK, Process, folder

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


def marked_processes() -> dict[int, str]:
    """Processes of any emulated run of this user, and which run."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes()
        except OSError:
            continue
        for entry in environ.split(b"\0"):
            if entry.startswith(f"{MARK}=".encode()):
                found[int(process.name)] = entry.partition(b"=")[2].decode()
    return found


def runs_of_others() -> set[str]:
    """Runs whose parents live and do not descend from this process."""
    found = set()
    for path in folder().glob("*.json"):
        parent = Process(**json.loads(path.read_text()))
        if parent.alive() and os.getpid() not in ancestors(parent.pid):
            found.add(path.stem)
    return found


def ancestors(pid: int) -> list[int]:
    """The process itself, its parent, and so on."""
    found = []
    while pid > 0:
        found.append(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found


def stand() -> tuple[set[str], set[str], set[int]]:
    """What a run must leave as it was; runs of others come and go."""
    marked, others = marked_processes(), runs_of_others()
    spared = {pid for pid, run in marked.items() if run in others}
    return networks(spared), devices(), marked.keys() - spared
