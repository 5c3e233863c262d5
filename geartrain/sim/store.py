"""A key-value store whose waits stand still on the virtual clock, for programs that use `torch.distributed`'s store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from geartrain.sim.fabric import Fabric
from geartrain.sim.kernel import Event
from geartrain.torch_private import Store

_DEFAULT = timedelta(minutes=5)


class SimulatedStore(Store):
    """Shared by all ranks of a run; reading and writing take no virtual time.

    Args:
        fabric: whose clock a wait stands still on.
    """

    def __init__(self, fabric: Fabric) -> None:
        super().__init__()
        self._fabric = fabric
        self._values: dict[str, bytes] = {}
        self._written: dict[str, Event] = {}
        self._timeout = _DEFAULT

    def set(self, key: str, value: Any) -> None:
        self._fabric.kernel.sync()
        self._values[key] = _bytes(value)
        written = self._written.pop(key, None)
        if written is not None:
            self._fabric.kernel.fire(written)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        self._fabric.kernel.sync()
        if not amount:
            self._fabric.kernel.look(f"looks at the number {key!r} of the store")
        total = int(self._values.get(key, b"0")) + amount
        self.set(key, str(total))
        return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        self._fabric.kernel.sync()
        current = self._values.get(key)
        if current == _bytes(expected) or (current is None and not _bytes(expected)):
            self.set(key, desired)
            return _bytes(desired)
        self._fabric.kernel.look(f"looks for another value of {key!r} in the store")
        return _bytes(expected) if current is None else current

    def append(self, key: str, value: Any) -> None:
        self.set(key, self._values.get(key, b"") + _bytes(value))

    def check(self, keys: Sequence[str]) -> bool:
        kernel = self._fabric.kernel
        kernel.sync()
        missing = [key for key in keys if key not in self._values]
        if missing:
            kernel.idle(f"checks the store for {missing[0]!r}")
            return all(key in self._values for key in keys)
        return True

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        kernel = self._fabric.kernel
        deadline = kernel.sync().now + (timeout or self._timeout).total_seconds()
        for key in keys:
            while key not in self._values:
                written = self._written.setdefault(key, Event(f"key {key!r} of the store"))
                if not self._fabric.wait(written, None, "store", deadline):
                    raise dist.DistStoreError(f"waited {timeout or self._timeout} of virtual time for key {key!r}")

    def delete_key(self, key: str) -> bool:
        self._fabric.kernel.sync()
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        self._fabric.kernel.sync()
        self._fabric.kernel.look("looks how many keys the store has")
        return len(self._values)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
