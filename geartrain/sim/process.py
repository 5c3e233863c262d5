"""What a rank of a simulated script sees as its own process: environment, clock, output, `__main__`, random states.

Everything here is put in place for the length of a run (`process_of_ranks`) and looks up the rank of the calling
thread; threads that are not ranks see the real thing.
"""

from __future__ import annotations

import inspect
import logging
import multiprocessing.process
import os
import random
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
import torch.multiprocessing
import torch.utils.data

from geartrain.errors import ScriptError
from geartrain.runtime.seeding import stream_seed
from geartrain.sim.explain import here
from geartrain.sim.kernel import current_activity

EPOCH = 1_767_225_600.0
"""What `time.time()` says at the start of a run: 2026-01-01, fixed so that two runs are the same."""


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute with another value for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# --- environment and output -------------------------------------------------------------------------------------------


class Environment(MutableMapping[str, str]):
    """`os.environ` of the calling rank.

    Args:
        real: the process's own, for threads that are not ranks, and what a rank's starts from.
        of_rank: what each rank finds besides.
    """

    def __init__(self, real: MutableMapping[str, str], of_rank: Mapping[int, Mapping[str, str]]) -> None:
        self._real = real
        self._ranks = {rank: {**real, **extra} for rank, extra in of_rank.items()}

    def _mine(self) -> MutableMapping[str, str]:
        activity = current_activity()
        return self._real if activity is None else self._ranks[activity.rank]

    def __getitem__(self, key: str) -> str:
        return self._mine()[key]

    def __setitem__(self, key: str, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError(f"str expected, not {type(value).__name__}")
        self._mine()[key] = value

    def __delitem__(self, key: str) -> None:
        del self._mine()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._mine()))

    def __len__(self) -> int:
        return len(self._mine())

    def copy(self) -> dict[str, str]:
        return dict(self._mine())

    def __or__(self, other: Mapping[str, str]) -> dict[str, str]:
        return {**self._mine(), **other}

    def __ror__(self, other: Mapping[str, str]) -> dict[str, str]:
        return {**other, **self._mine()}

    def __repr__(self) -> str:
        return f"environ({dict(self._mine())!r})"


class RankOutput:
    """A text stream that puts the rank before each line; a line is written when it is complete."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: dict[int, str] = {}

    def write(self, text: str) -> int:
        activity = current_activity()
        if activity is None:
            return self._stream.write(text)
        pending = self._lines.get(activity.rank, "") + text
        *lines, rest = pending.split("\n")
        for line in lines:
            self._stream.write(f"[{activity.rank}] {line}\n")
        self._lines[activity.rank] = rest
        return len(text)

    def finish(self) -> None:
        """Write lines that were never ended."""
        for rank, rest in sorted(self._lines.items()):
            if rest:
                self._stream.write(f"[{rank}] {rest}\n")
        self._lines.clear()
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# --- the clock --------------------------------------------------------------------------------------------------------


def _virtual(read: Callable[[], Any], base: float, scale: int | None) -> Callable[[], Any]:
    def clock() -> Any:
        activity = current_activity()
        if activity is None:
            return read()
        now = activity.state.fabric.kernel.read_clock()
        return base + now if scale is None else int(base) * scale + int(now * scale)

    clock.__name__ = read.__name__
    clock.__doc__ = read.__doc__
    return clock


def _sleep(sleep: Callable[[float], None]) -> Callable[[float], None]:
    def virtual_sleep(seconds: float) -> None:
        activity = current_activity()
        if activity is None:
            return sleep(seconds)
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        activity.state.fabric.sleep(seconds)

    return virtual_sleep


_CLOCKS: dict[str, tuple[float, int | None]] = {
    "time": (EPOCH, None),
    "time_ns": (EPOCH, 10**9),
    "perf_counter": (0.0, None),
    "perf_counter_ns": (0.0, 10**9),
    "monotonic": (0.0, None),
    "monotonic_ns": (0.0, 10**9),
    "process_time": (0.0, None),
    "process_time_ns": (0.0, 10**9),
    "thread_time": (0.0, None),
    "thread_time_ns": (0.0, 10**9),
}


@contextmanager
def virtual_clock(is_users: Callable[[types.ModuleType], bool]) -> Iterator[None]:
    """`time.time`, `sleep` and the like are virtual in ranks, also where a user's module holds them by name."""
    virtual: dict[Any, Any] = {
        getattr(time, name): _virtual(getattr(time, name), *arguments) for name, arguments in _CLOCKS.items()
    }
    virtual[time.sleep] = _sleep(time.sleep)
    with ExitStack() as stack:
        for module in [m for m in list(sys.modules.values()) if isinstance(m, types.ModuleType)]:
            if module is time or is_users(module):
                for name, value in list(vars(module).items()):
                    if isinstance(value, types.BuiltinFunctionType) and value in virtual:
                        stack.enter_context(replaced(module, name, virtual[value]))
        yield


# --- what cannot be had -----------------------------------------------------------------------------------------------


def _refused(function: Callable[..., Any], what: str, change: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        activity = current_activity()
        if activity is None:
            return function(*args, **kwargs)
        raise ScriptError(f"rank {activity.rank} {what}, which a simulated rank cannot\n{here()}\n  change:  {change}")

    return refuse


def _inline_loader(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)
    told: set[str] = set()

    def inline(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        if current_activity() is not None and bound.arguments.get("num_workers", 0):
            place = here()
            if place not in told:
                told.add(place)
                message = (
                    f"a data loader with {bound.arguments['num_workers']} worker processes loads in the rank itself "
                    f"under simulation\n{place}\n  change:  num_workers=0 says the same without this warning"
                )
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            bound.arguments["num_workers"] = 0
            for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
                bound.arguments.pop(name, None)
        init(*bound.args, **bound.kwargs)

    return inline


def _leave(leave: Callable[[int], None]) -> Callable[[int], None]:
    """`os._exit` of a rank ends the rank, not the process that all ranks share."""

    def exit_rank(status: int) -> None:
        if current_activity() is None:
            leave(status)
        raise SystemExit(status)

    return exit_rank


@contextmanager
def _refusals() -> Iterator[None]:
    one_program = (
        "leave the starting of ranks to `geartrain simulate --ranks N`: read RANK and WORLD_SIZE from the environment"
    )
    no_process = "do the work in the rank itself"
    process: Any = multiprocessing.process.BaseProcess
    with ExitStack() as stack:
        for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
            for name in ("spawn", "start_processes"):
                function = getattr(module, name, None)
                if inspect.isfunction(function):
                    stack.enter_context(
                        replaced(module, name, _refused(function, f"calls torch.multiprocessing.{name}", one_program))
                    )
        stack.enter_context(replaced(process, "start", _refused(process.start, "starts a process", no_process)))
        stack.enter_context(replaced(os, "fork", _refused(os.fork, "forks", no_process)))
        stack.enter_context(replaced(os, "_exit", _leave(os._exit)))
        loader: Any = torch.utils.data.DataLoader
        stack.enter_context(replaced(loader, "__init__", _inline_loader(loader.__init__)))
        yield


# --- swapped with the baton -------------------------------------------------------------------------------------------


class PythonRandom:
    """The state of `random`."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def save(self) -> Any:
        return random.getstate()

    def restore(self, state: Any) -> None:
        random.setstate(state)

    def fresh(self, rank: int, lane: str) -> Any:
        return random.Random(stream_seed(self._seed, rank, f"python {lane}")).getstate()


class NumpyRandom:
    """The state of numpy's global generator."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def save(self) -> Any:
        return np.random.get_state()

    def restore(self, state: Any) -> None:
        np.random.set_state(state)

    def fresh(self, rank: int, lane: str) -> Any:
        return np.random.RandomState(stream_seed(self._seed, rank, f"numpy {lane}") % 2**32).get_state()


class MainModule:
    """`sys.argv` and the module that is `__main__`, one of each per rank."""

    def __init__(self, script: Path, args: list[str]) -> None:
        self._script, self._args = script, args
        self._modules: dict[int, types.ModuleType] = {}
        self._argv: dict[int, list[str]] = {}

    def save(self) -> Any:
        return sys.argv, sys.modules["__main__"]

    def restore(self, state: Any) -> None:
        sys.argv, sys.modules["__main__"] = state

    def fresh(self, rank: int, lane: str) -> Any:
        return self._argv.setdefault(rank, [str(self._script), *self._args]), self.of(rank)

    def of(self, rank: int) -> types.ModuleType:
        module = self._modules.get(rank)
        if module is None:
            module = self._modules[rank] = types.ModuleType("__main__")
            module.__file__ = str(self._script)
            module.__dict__["__builtins__"] = __builtins__
        return module


@contextmanager
def _defaults_restored() -> Iterator[None]:
    """What scripts set for their process, and would now set for ours: defaults of torch, folder, log, warnings."""
    dtype, folder = torch.get_default_dtype(), os.getcwd()
    deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with warnings.catch_warnings():
            # Any backend may be asked for by name; that this build of PyTorch lacks it is of no consequence here.
            warnings.filterwarnings("ignore", "Attempted to get default timeout for nccl backend")
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic, warn_only=only_warns)
        os.chdir(folder)
        root.handlers[:] = handlers
        root.setLevel(level)


# --- all together -----------------------------------------------------------------------------------------------------


@contextmanager
def process_of_ranks(
    script: Path, environments: Mapping[int, Mapping[str, str]], *, real_clock: bool, is_users: Callable[[str], bool]
) -> Iterator[None]:
    """The process as the ranks of a script see it, for the length of a run.

    Args:
        script: its folder becomes the first place to import from.
        environments: what each rank finds in its environment besides the process's own.
        real_clock: leave `time` alone.
        is_users: whether a file is the user's own.
    """

    def users_module(module: types.ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and is_users(file)

    before = set(sys.modules)
    folder = str(script.parent)
    outputs = [RankOutput(sys.stdout), RankOutput(sys.stderr)] if len(environments) > 1 else []
    with ExitStack() as stack:
        stack.enter_context(_defaults_restored())
        stack.enter_context(replaced(sys, "path", [folder, *sys.path]))
        stack.enter_context(replaced(sys, "excepthook", sys.excepthook))
        stack.enter_context(replaced(os, "environ", Environment(os.environ, environments)))
        for name, output in zip(("stdout", "stderr"), outputs, strict=False):
            stack.enter_context(replaced(sys, name, output))
            stack.callback(output.finish)
        if not real_clock:
            stack.enter_context(virtual_clock(users_module))
        stack.enter_context(_refusals())
        try:
            yield
        finally:
            for name in set(sys.modules) - before:
                module = sys.modules.get(name)
                if module is not None and str(getattr(module, "__file__", None) or "").startswith(folder + os.sep):
                    del sys.modules[name]
