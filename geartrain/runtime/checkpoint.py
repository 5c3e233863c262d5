"""Checkpoints: what every rank needs to go on as if nothing had happened, written with `torch.distributed.checkpoint`.

    FOLDER/step-00000020/checkpoint.json      which run it is of; stands only where all the rest is complete
    FOLDER/step-00000020/rank-000/            the state of a rank, one checkpoint of its own
    FOLDER/log/00000020-000.pickle            what the rank wrote down since the checkpoint before

Every rank writes apart (`no_dist`): its state is its own, and planning together would send messages that a run without
checkpoints does not send. A checkpoint is made after a step of all workers. They come together for it, which is the one
thing that it costs in virtual time; for a method whose workers are steps apart that is part of the run. It is written
under another name and renamed by rank 0 when all are done, so a run that is killed leaves the last complete one; the
last two are kept. A run that goes on has its clock go on from the checkpoint's moment.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geartrain.errors import ConfigurationError
from geartrain.record.joining import Cutter, Part, joined
from geartrain.record.log import RunRecord
from geartrain.runtime.charging import uncharged
from geartrain.runtime.context import Context
from geartrain.runtime.saved_state import read_state, write_state
from geartrain.runtime.strategy import Strategy
from geartrain.runtime.worker import Service

FORMAT = 1
"""Version of the layout."""

KEPT = 2
"""Complete checkpoints that stay: one could be found unreadable."""

_INFO, _LOG = "checkpoint.json", "log"


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Where a run leaves checkpoints, and from which one it goes on.

    Args:
        folder: of this run alone.
        every: steps between two; 0 writes none.
        resume: the checkpoint to go on from, see `latest`; None starts anew, and forgets those in the folder.
    """

    folder: Path
    every: int = 0
    resume: Path | None = None

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ConfigurationError(f"a checkpoint every {self.every} steps cannot be; give 1 or more")
        # Ranks may be processes with another current folder.
        object.__setattr__(self, "folder", self.folder.absolute())
        object.__setattr__(self, "resume", self.resume.absolute() if self.resume else None)


@dataclass(frozen=True)
class Saved:
    """What `checkpoint.json` says.

    Attributes:
        step: steps that had been taken.
        run: what makes a run this one and no other.
        num_workers, num_services: who took part.
        moment: on the run's clock.
        process: 0 if the process that wrote it began the run, 1 if it had gone on once, ...
    """

    path: Path
    step: int
    run: dict[str, Any]
    num_workers: int
    num_services: int
    moment: float
    process: int

    def check(self, run: Mapping[str, Any], strategy: Strategy, num_workers: int, num_services: int) -> None:
        """Refuse to go on with another run, or with another number of workers where that means nothing."""
        different = [f"{key} {self.run.get(key)!r}, here {run[key]!r}" for key in run if self.run.get(key) != run[key]]
        if different:
            raise ConfigurationError(
                f"the checkpoint {str(self.path)!r} is of another run: {'; '.join(different)}.\n"
                "  go on with the options that it was made with, or start anew in another folder"
            )
        if num_workers != self.num_workers and not strategy.needs.regroups:
            raise ConfigurationError(
                f"the checkpoint {str(self.path)!r} was saved by {self.num_workers} worker(s), and {strategy.name} "
                f"cannot go on from it with {num_workers}: its state belongs to each worker.\n"
                f"  go on with {self.num_workers}"
            )
        if num_services != self.num_services:
            raise ConfigurationError(
                f"the checkpoint {str(self.path)!r} has {self.num_services} service(s), and {num_services} would run"
            )


def read_info(checkpoint: Path) -> Saved:
    """What a checkpoint says of itself; ConfigurationError when it is none."""
    try:
        info = json.loads((checkpoint / _INFO).read_text(encoding="utf-8"))
        if info.pop("format") != FORMAT:
            raise ValueError("another format")
        return Saved(path=checkpoint, **info)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{str(checkpoint)!r} is no checkpoint of a run that can go on: {error}") from error


def checkpoints(folder: Path) -> list[Path]:
    """The complete ones in a run's folder, oldest first."""
    there = [path for path in folder.glob("step-*") if (path / _INFO).is_file()]
    return sorted(path for path in there if path.name.removeprefix("step-").isdigit())


def latest(folder: Path) -> Path | None:
    """The last complete checkpoint in a run's folder."""
    return next(reversed(checkpoints(folder)), None)


def whole_record(record: RunRecord, saved: Saved | None) -> RunRecord:
    """The record of a run with what its earlier processes wrote down, if they had as many workers.

    Args:
        saved: the checkpoint that it went on from, read before that: the run may have removed it since.
    """
    if saved is None:
        return record
    logs = saved.path.parent / _LOG
    num_ranks = saved.num_workers + saved.num_services
    found = Counter(int(path.name.split("-")[0]) for path in logs.glob("*.pickle"))
    steps = sorted(step for step in found if step <= saved.step)
    if num_ranks != len(record.logs) or any(found[step] != num_ranks for step in steps):
        return record
    return joined([[_read_part(logs, step, rank) for rank in range(num_ranks)] for step in steps], saved.moment, record)


class Keeper:
    """One rank's part in saving a run, and in going on from where it was saved.

    Args:
        plan: where and when.
        run: what makes this run itself: strategy, task, seed, ...; another one's checkpoint is refused.
        ctx: of the rank.
        strategy: regroups the state for another number of workers.
    """

    def __init__(self, plan: Checkpoints, run: dict[str, Any], ctx: Context, strategy: Strategy) -> None:
        if ctx.meta:
            raise ConfigurationError("a run on shapes alone has no numbers to save; leave out the checkpoints")
        self._plan, self._run, self._ctx, self._strategy = plan, run, ctx, strategy
        self._saved = read_info(plan.resume) if plan.resume else None
        if self._saved:
            self._saved.check(run, strategy, ctx.num_workers, ctx.world_size - ctx.num_workers)
        self._ledger = ctx.upkeep.ledger("checkpoint")
        self._said: Counter[tuple[str, int]] = Counter()
        self._process = self._saved.process + 1 if self._saved else 0
        self._cutter = Cutter(self._process, self._saved.moment if self._saved else 0.0)
        if ctx.rank == 0 and plan.every:
            _forget(plan.folder, self._saved.step if self._saved else 0)

    @property
    def first_step(self) -> int:
        """The step to go on with."""
        return self._saved.step if self._saved else 0

    @property
    def same_workers(self) -> bool:
        """Whether as many workers go on as saved."""
        return self._saved is None or self._saved.num_workers == self._ctx.num_workers

    def due(self, steps: int) -> bool:
        """Whether a checkpoint belongs after so many steps."""
        return self._plan.every > 0 and steps % self._plan.every == 0

    def load(self) -> dict[str, Any] | None:
        """A worker's state to go on from: what it gave to `save`; None when the run starts anew.

        For another number of workers, "worker" is regrouped and all else that of worker 0.
        """
        if self._saved is None:
            return None
        path, rank = self._saved.path, self._ctx.rank
        with uncharged():
            if self.same_workers:
                return dict(read_state(_rank(path, rank)))
            states = _States(path, self._saved.num_workers)
            state = dict(states[0], random=states[rank]["random"] if rank < len(states) else None)
            workers = _Parts(states)
            state["worker"] = self._strategy.regroup(workers, rank, self._ctx.num_workers)
            return state

    def go_on(self, random_state: Mapping[str, Any] | None) -> None:
        """All ranks: random streams and the clock as they were. Call it when all else is loaded."""
        if self._saved is None:
            return
        if random_state is not None:
            with uncharged():
                _load_random(self._ctx, random_state)
        self._ctx.upkeep.go_on_at(self._saved.moment)

    def save(self, steps: int, state: Callable[[], dict[str, Any]]) -> None:
        """All workers, after the same step: come together and save; `state` is asked when nobody is in a step."""
        with uncharged():
            self._say("ready", steps)
            self._until("ready", steps, self._ctx.num_workers)
            self._write(steps, state())
            self._until("saved", steps, self._ctx.world_size)
            if self._ctx.rank == 0:
                self._complete(steps)

    def attend(self, service: Service) -> None:
        """A service: load what it was, and save it, in a lane, whenever the workers save."""
        if self._saved is not None:
            rank = self._saved.num_workers + self._ctx.rank - self._ctx.num_workers
            with uncharged():
                state = read_state(_rank(self._saved.path, rank))
                service.load_state_dict(state["service"])
            self.go_on(state["random"])
        if self._plan.every:
            self._ctx.spawn(lambda: self._keep(service), "checkpoints", daemon=True)

    def _keep(self, service: Service) -> None:
        every = self._plan.every
        steps = (self.first_step // every + 1) * every
        with uncharged():
            while True:
                self._until("ready", steps, self._ctx.num_workers)
                self._write(steps, {"service": service.state_dict()})
                self._until("saved", steps, self._ctx.world_size)
                steps += every

    def _say(self, word: str, steps: int) -> None:
        self._ledger.post([word, steps])

    def _until(self, word: str, steps: int, count: int) -> None:
        while self._said[word, steps] < count:
            self._said.update((entry[0], entry[1]) for entry in self._ledger.wait())

    def _write(self, steps: int, state: dict[str, Any]) -> None:
        ctx, folder = self._ctx, self._plan.folder
        write_state(_rank(_unfinished(folder, steps), ctx.rank), {**state, "random": _random(ctx)})
        part = self._cutter.cut(ctx.upkeep.written(), ctx.upkeep.link_bytes())
        path = _part_path(folder / _LOG, steps, ctx.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(part))
        self._say("saved", steps)

    def _complete(self, steps: int) -> None:
        info = {
            "format": FORMAT,
            "step": steps,
            "run": self._run,
            "num_workers": self._ctx.num_workers,
            "num_services": self._ctx.world_size - self._ctx.num_workers,
            "moment": self._ctx.clock.now(),
            "process": self._process,
        }
        folder = self._plan.folder
        unfinished = _unfinished(folder, steps)
        (unfinished / _INFO).write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")
        unfinished.rename(folder / f"step-{steps:08d}")
        for old in checkpoints(folder)[:-KEPT]:
            _remove(old)


class _States(Sequence[dict[str, Any]]):
    """The states that workers saved, each read when it is looked at."""

    def __init__(self, path: Path, count: int) -> None:
        self._path, self._count = path, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rank: Any) -> Any:
        if not 0 <= rank < self._count:
            raise IndexError(rank)
        return read_state(_rank(self._path, rank))


class _Parts(Sequence[dict[str, Any]]):
    """What the strategy's workers made of their states."""

    def __init__(self, states: _States) -> None:
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, rank: Any) -> Any:
        return self._states[rank]["worker"]


def _rank(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"rank-{rank:03d}"


def _unfinished(folder: Path, steps: int) -> Path:
    return folder / f".step-{steps:08d}"


def _part_path(logs: Path, steps: int, rank: int) -> Path:
    return logs / f"{steps:08d}-{rank:03d}.pickle"


def _read_part(logs: Path, steps: int, rank: int) -> Part:
    path = _part_path(logs, steps, rank)
    try:
        part: Part = pickle.loads(path.read_bytes())
    except (OSError, pickle.UnpicklingError, EOFError) as error:
        raise ConfigurationError(f"what rank {rank} wrote down cannot be read from {str(path)!r}: {error}") from error
    return part


def _remove(checkpoint: Path) -> None:
    """First under a name that nobody takes for a checkpoint."""
    gone = checkpoint.with_name(f".gone-{checkpoint.name}")
    checkpoint.rename(gone)
    shutil.rmtree(gone)


def _forget(folder: Path, steps: int) -> None:
    """Remove what is there of later steps than these, and what was never finished."""
    for path in [*folder.glob(".step-*"), *folder.glob(".gone-*")]:
        shutil.rmtree(path)
    for path in checkpoints(folder):
        if int(path.name.removeprefix("step-")) > steps:
            _remove(path)
    for path in (folder / _LOG).glob("*.pickle"):
        if int(path.name.split("-")[0]) > steps:
            path.unlink()


def _random(ctx: Context) -> dict[str, Any]:
    state = {
        "upkeep": ctx.upkeep.random_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if ctx.device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(ctx.device)
    return state


def _load_random(ctx: Context, state: Mapping[str, Any]) -> None:
    ctx.upkeep.load_random_state(state["upkeep"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if ctx.device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], ctx.device)
