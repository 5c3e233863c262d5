"""Traces kept between processes: tracing a large model takes seconds, and reading what came of it a fraction of one.

They lie in the user's cache folder ($XDG_CACHE_HOME or ~/.cache, geartrain/traces), named after what decides them: the
text, the sources of this package that trace and define models, and the versions of torch and Python. Whatever cannot be
read or written is traced as if it had never been kept. The folder may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path

import torch

from geartrain.record.files import write_together
from geartrain.workload.plain import as_plain, from_plain
from geartrain.workload.spec import Workload

WORTH = 0.5
"""Seconds of tracing from which a trace is kept."""

_FORGOTTEN = 30 * 24 * 3600.0
"""Seconds after which a trace that nobody has asked for is deleted."""

_DECIDE = ("models", "workload", "runtime", "cost", "torch_private.py", "units.py")
"""The parts of the package that decide what a trace is."""


def kept_workload(text: str, trace: Callable[[], Workload]) -> Workload:
    """The workload that a text stands for, read if it was kept, else traced and kept."""
    path = _folder() / f"{_digest(text, _sources())}.json"
    found = _read(path)
    if found is not None:
        return found
    begin = time.perf_counter()
    found = trace()
    if time.perf_counter() - begin >= WORTH:
        _write(path, found)
    return found


def _folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "geartrain" / "traces"


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


@cache
def _sources() -> str:
    """A digest of the sources that decide, and of the versions."""
    package = Path(str(resources.files("geartrain")))
    files = sorted(
        path
        for part in _DECIDE
        for path in ([package / part] if part.endswith(".py") else (package / part).rglob("*.py"))
    )
    content = hashlib.blake2b(digest_size=16)
    for path in files:
        content.update(path.read_bytes())
    return _digest(content.hexdigest(), torch.__version__, sys.version)


def _read(path: Path) -> Workload | None:
    try:
        found = from_plain(Workload, json.loads(path.read_text(encoding="utf-8")))
        path.touch()
    except (OSError, ValueError, TypeError):
        return None
    return found


def _write(path: Path, workload: Workload) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_together({path: json.dumps(as_plain(workload), separators=(",", ":")).encode()})
        for old in path.parent.glob("*.json"):
            if time.time() - old.stat().st_mtime > _FORGOTTEN:
                old.unlink(missing_ok=True)
