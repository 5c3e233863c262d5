"""A table of measured times: what each operation, at its shapes, took on one host. Plain data, kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from geartrain.cost.kernel_class import kernel_class
from geartrain.errors import ConfigurationError

Key = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]
"""Operation, shapes and types of its tensors: `Work.key`."""

_FORMAT = "geartrain times 1"


@dataclass(frozen=True)
class Entry:
    """One operation at one set of shapes.

    Attributes:
        seconds: what it took.
        flop, nbytes: its work, from which the rates of the host are read off.
    """

    seconds: float
    flop: float
    nbytes: float


def _rate_class(name: str) -> str:
    """Operations that run at similar rates: "convolution", "product", and "memory" for all that computes little."""
    kind = kernel_class(name)
    return {"convolution": "convolution", "product": "product", "attention": "product"}.get(kind, "memory")


@dataclass(frozen=True)
class Table:
    """Measured times and where they come from.

    Attributes:
        host, date: where and when they were measured.
        num_threads: threads that an operation could use.
        what: what was run to measure them.
        entries: per key.
    """

    host: str
    date: str
    num_threads: int
    what: str
    entries: Mapping[Key, Entry]

    def data(self) -> dict[str, Any]:
        """The table as plain values; `read` makes it again."""
        head = {"format": _FORMAT, "host": self.host, "date": self.date, "num_threads": self.num_threads}
        rows = [
            {"op": op, "shapes": shapes, "dtypes": dtypes, "seconds": e.seconds, "flop": e.flop, "bytes": e.nbytes}
            for (op, shapes, dtypes), e in self.entries.items()
        ]
        return {**head, "what": self.what, "entries": rows}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Table:
        """The table of such values; ValueError, KeyError or TypeError when they are something else."""
        head = dict(data)
        if head.pop("format") != _FORMAT:
            raise ValueError("another format")
        entries = dict(_read_entry(row) for row in head.pop("entries"))
        return cls(**head, entries=entries)

    def text(self) -> str:
        """The table as JSON."""
        return json.dumps(self.data(), indent=1) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the table as JSON."""
        Path(path).write_text(self.text(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Table:
        """Read what `save` wrote; ConfigurationError when there is no such file or it is something else."""
        try:
            return cls.read(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigurationError(f"no table of times can be read from {str(path)!r}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{str(path)!r} is no table of times ({error}); measure one and save it with Table.save"
            ) from error

    @cached_property
    def _rates(self) -> tuple[float, float, float]:
        """Best FLOP per second and bytes per second seen, and the shortest time, which stands for the launch."""
        entries = [entry for entry in self.entries.values() if entry.seconds > 0]
        flops = max((e.flop / e.seconds for e in entries), default=0.0)
        memory = max((e.nbytes / e.seconds for e in entries), default=0.0)
        return flops, memory, min((e.seconds for e in entries), default=0.0)

    def _roofline(self, flop: float, nbytes: float, num_kernels: int = 1) -> float:
        flops, memory, launch = self._rates
        return num_kernels * launch + max(flop / flops if flops else 0.0, nbytes / memory if memory else 0.0)

    @cached_property
    def scales(self) -> Mapping[str, float]:
        """Per class of operations: measured time over the time of a roofline of this host's best rates."""
        measured: dict[str, float] = {}
        ideal: dict[str, float] = {}
        for (op, _, _), entry in self.entries.items():
            kind = _rate_class(op)
            measured[kind] = measured.get(kind, 0.0) + entry.seconds
            ideal[kind] = ideal.get(kind, 0.0) + self._roofline(entry.flop, entry.nbytes)
        return {kind: measured[kind] / ideal[kind] for kind in measured if ideal[kind] > 0}

    def estimate(self, name: str, flop: float, nbytes: float, num_kernels: int) -> float | None:
        """Seconds for an operation that was not measured; None when nothing of its class was.

        seconds = scale of the class * (launches + max(flop / best FLOP rate, bytes / best memory rate))
        """
        scale = self.scales.get(_rate_class(name))
        return None if scale is None else scale * self._roofline(flop, nbytes, num_kernels)


def _read_entry(row: Mapping[str, Any]) -> tuple[Key, Entry]:
    shapes = tuple(tuple(int(size) for size in shape) for shape in row["shapes"])
    key = (str(row["op"]), shapes, tuple(str(dtype) for dtype in row["dtypes"]))
    return key, Entry(float(row["seconds"]), float(row["flop"]), float(row["bytes"]))
