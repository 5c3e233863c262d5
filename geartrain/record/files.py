"""What a run leaves in its folder.

    run.json        complete effective configuration, versions, seed, summary, cluster, closed form, totals per rank,
                    who waited for whom, bytes per link
    steps.jsonl     a line per rank and step: loss, time, compute, wire, wait, exposed communication, bytes, messages
    trace.json.gz   the first steps as a Chrome trace

SI units everywhere. All files are written under a temporary name first and then renamed, run.json last: where it
stands, the run is complete. A number that is not finite is written as null, since JSON has no other word for it.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from geartrain import __version__
from geartrain.errors import TaskError
from geartrain.record.chrome import chrome_trace
from geartrain.record.log import RunRecord
from geartrain.record.split import RankSplit, Split
from geartrain.record.summary import summarise

FORMAT = 1
"""Version of the layout of these files."""

RUN, STEPS, TRACE = "run.json", "steps.jsonl", "trace.json.gz"


class RunFolder:
    """A folder that a run may write to. Made, and found writable, before anything runs; TaskError otherwise."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            reason = error.strerror or str(error)
            raise TaskError(
                f"cannot write to the output folder {str(self.path)!r}: {reason}\n"
                "  give --out a folder that exists, or can be made, and that you may write to"
            ) from error

    def begin(self) -> None:
        """Take away what says that a run is complete: another one begins here."""
        (self.path / RUN).unlink(missing_ok=True)

    def write(
        self,
        record: RunRecord,
        split: Split,
        *,
        config: Mapping[str, Any],
        summary: Mapping[str, Any],
        cost: Any = None,
    ) -> None:
        """Write all three files; none of them is ever seen half-written.

        Args:
            config: all that decided how the run went, the cluster and the seed included.
            summary: what came of it.
            cost: the strategy's closed form, if it has one.
        """
        run = {
            "format": FORMAT,
            "versions": versions(),
            "config": config,
            "seed": config.get("seed"),
            "summary": summary,
            "closed_form": cost,
            "waits": [[rank, other, seconds] for (rank, other), seconds in sorted_waits(split)],
            "link_bytes": record.link_bytes,
            **({"emulation": record.emulation} if record.emulation else {}),
            **summarise(record, split),
        }
        lines = "".join(_line(row) + "\n" for rank in split.ranks for row in _step_rows(rank))
        parts = {
            STEPS: lines.encode(),
            TRACE: packed(chrome_trace(record, split)),
            RUN: readable(run),
        }
        write_together({self.path / name: content for name, content in parts.items()})


def write_trace(path: str | Path, record: RunRecord, split: Split) -> None:
    """A Chrome trace alone; packed unless the name ends in .json."""
    target, trace = Path(path), chrome_trace(record, split)
    content = _line(trace).encode() if target.suffix == ".json" else packed(trace)
    write_together({target: content})


def check_file(path: str | Path) -> None:
    """TaskError when a file of that name could not be written."""
    folder = Path(path).resolve().parent
    if Path(path).is_dir():
        raise TaskError(f"cannot write to {str(path)!r}: it is a folder; give the name of a file")
    RunFolder(folder)


def versions() -> dict[str, str]:
    """What computed: geartrain, Python, torch, numpy, and the kind of machine."""
    found = {"geartrain": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def sorted_waits(split: Split) -> list[tuple[tuple[int, int | None], float]]:
    """The wait matrix without its zeros, in order of ranks; waiting for no rank in particular comes first."""
    return sorted(split.waits().items(), key=lambda item: (item[0][0], -1 if item[0][1] is None else item[0][1]))


def plain(value: Any) -> Any:
    """The same in JSON's words: dataclasses as objects, tuples as lists, what is not finite as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def packed(value: Any) -> bytes:
    """JSON, gzip; the same value gives the same bytes, whenever and wherever it is written."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as file:
        file.write(_line(value).encode())
    return buffer.getvalue()


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write all files under temporary names, then rename them in the order given; on an error none is left behind."""
    temporary: dict[Path, Path] = {}
    try:
        for target, content in contents.items():
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            temporary[target] = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).chmod(0o666 & ~_umask())
        for target, name_now in temporary.items():
            name_now.replace(target)
    finally:
        for leftover in temporary.values():
            leftover.unlink(missing_ok=True)


def _umask() -> int:
    """What the process takes away from a new file's rights; a temporary file would otherwise stay private."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def readable(value: Any) -> bytes:
    """JSON on several lines, for files that people look into."""
    return (json.dumps(plain(value), indent=1, allow_nan=False) + "\n").encode()


def _line(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def _step_rows(rank: RankSplit) -> Iterator[dict[str, Any]]:
    for step in rank.steps:
        shares = step.shares
        yield {
            "rank": rank.rank,
            "step": step.step,
            "loss": step.values.get("loss"),
            "begin": shares.begin,
            "end": shares.end,
            "time": shares.time,
            "compute": shares.compute,
            "wire": shares.wire,
            "wait": shares.wait,
            "exposed_communication": shares.exposed_communication,
            "hidden_communication": shares.hidden_communication,
            "bytes": shares.bytes_sent,
            "messages": shares.messages,
            **{key: value for key, value in step.values.items() if key != "loss"},
        }
