"""Network namespaces without names: held by file descriptor, gone when nobody holds them or lives in them.

Works for root and, through a user namespace, for anybody whom the kernel lets make one. Each call is for a process
with one thread: a process with several cannot enter a user namespace.
"""

from __future__ import annotations

import ctypes
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pyroute2 import IPRoute

from geartrain.errors import ConfigurationError

_NEW_NET, _NEW_USER, _NEW_NAMES, _NEW_MOUNTS = 0x40000000, 0x10000000, 0x04000000, 0x00020000
_BIND, _RECURSIVE, _SLAVE = 0x1000, 0x4000, 0x80000
_DEATH_SIGNAL, _SUBREAPER, _TIMER_SLACK = 1, 36, 29
_libc: Any = ctypes.CDLL(None, use_errno=True)

Right = Literal["root", "user namespace"]


def enter_own_network() -> Right:
    """Move this process into a new, empty network, with the right to make more; says what gave it that right."""
    try:
        _call("unshare", _NEW_NET)
        return "root"
    except PermissionError:
        pass
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", _NEW_USER | _NEW_NET)
    except OSError as error:
        raise ConfigurationError(
            f"this system lets neither this user make a network namespace nor a user namespace for it: {error}\n"
            "  run as root, or let users make namespaces: sysctl user.max_user_namespaces, and on some systems "
            "kernel.unprivileged_userns_clone or kernel.apparmor_restrict_unprivileged_userns"
        ) from error
    # Everybody stays who they are, and sees it. Where root has lost its rights, root cannot be mapped: ranks then see
    # another number, while the files that they write belong to the same user.
    with suppress(PermissionError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    return "user namespace"


def this_network() -> int:
    """A file descriptor that holds the network this process is in."""
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter(network: int) -> None:
    """Move this process into a network."""
    _call("setns", network, _NEW_NET)


@contextmanager
def inside(network: int) -> Iterator[IPRoute]:
    """What runs inside is in that network, with a socket to its kernel; afterwards this process is where it was."""
    before = this_network()
    try:
        enter(network)
        with IPRoute() as route:
            yield route
    finally:
        enter(before)
        os.close(before)


def new_network() -> int:
    """Make a network with nothing in it but a loopback device that works; this process stays where it is."""
    before = this_network()
    try:
        _call("unshare", _NEW_NET)
        made = this_network()
        with IPRoute() as route:
            _settle_down(route)
        return made
    finally:
        enter(before)
        os.close(before)


def congestion_control() -> str:
    """What TCP of this process's network uses."""
    return _setting("tcp_congestion_control").read_text().strip()


def quiet_network() -> None:
    """Set up the network this process is in as `new_network` does."""
    with IPRoute() as route:
        _settle_down(route)


def _settle_down(route: IPRoute) -> None:
    # Traffic that nobody asked for would be in the counters.
    for name in ("all", "default"):
        with suppress(OSError):
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
    # BBR, the default of some systems, now and then stops sending to look for a shorter way.
    for name in ("cubic", "reno"):
        with suppress(OSError):
            _setting("tcp_congestion_control").write_text(name)
            break
    # A pause between two steps is no reason to begin slowly again.
    with suppress(OSError):
        _setting("tcp_slow_start_after_idle").write_text("0")
    (loopback,) = route.link_lookup(ifname="lo")
    route.link("set", index=loopback, state="up")


def limit_window(most: int) -> None:
    """Bytes that the kernel keeps at most of a connection to this process's network until a program reads them."""
    setting = _setting("tcp_rmem")
    least, usual, now = map(int, setting.read_text().split())
    most = min(most, now)
    setting.write_text(f"{min(least, most)} {min(usual, most)} {most}")


def take_name(name: str, known: Mapping[str, str]) -> None:
    """Let this process, and those that it starts, see another host name, and the addresses of others by theirs.

    Without a right to it nothing changes: names are a courtesy, which libraries complain about when it lacks.
    """
    try:
        _call("unshare", _NEW_NAMES | _NEW_MOUNTS)
        socket.sethostname(name)
        hosts = Path("/etc/hosts")
        # c10d asks for the names of addresses as its sockets know them.
        lines = [f"{form}{address} {other}" for other, address in known.items() for form in ("", "::ffff:")]
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("\n".join([hosts.read_text() if hosts.exists() else "", *lines, ""]))
            file.flush()
            os.chmod(file.name, 0o644)
            _mount(None, "/", _SLAVE | _RECURSIVE)  # what is mounted here stays here
            _mount(file.name, str(hosts), _BIND)
    except OSError:
        return


def _mount(source: str | None, target: str, flags: int) -> None:
    if _libc.mount(source and source.encode(), target.encode(), None, ctypes.c_ulong(flags), None):
        number = ctypes.get_errno()
        raise OSError(number, f"mount: {os.strerror(number)}")


def _setting(name: str) -> Path:
    return Path("/proc/sys/net/ipv4", name)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    _call("prctl", _DEATH_SIGNAL, 9, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Processes below this one whose parents end become its children."""
    _call("prctl", _SUBREAPER, 1, 0, 0, 0)


def sharp_timers() -> None:
    """Let this process be woken when it asked to be, and not up to 50 us later."""
    _call("prctl", _TIMER_SLACK, 1, 0, 0, 0)


def _call(name: str, *args: int) -> None:
    function = getattr(_libc, name)
    # The kernel reads what prctl gets as long words.
    given: tuple[Any, ...] = tuple(map(ctypes.c_ulong, args)) if name == "prctl" else args
    if function(*given):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
