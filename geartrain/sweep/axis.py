"""What a sweep varies: `--vary KEY=VALUES` as a value.

links.rate=1Gbit/s..100Gbit/s        25 values, equally far apart in logarithms
links.rate=1Gbit/s..100Gbit/s:7      7 of them
links.latency=0us..1ms:5             from zero: equally far apart
ranks=2..1024                        whole numbers and sizes: doubled from the first to the last
ranks=2,3,12                         just these
strategy.bucket_size=1MiB..64MiB     a setting of every strategy that has it
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from geartrain.cluster.spec import Cluster
from geartrain.errors import ConfigurationError, UnitError, nearest
from geartrain.predict.change import KEYS, changed
from geartrain.units import QUANTITIES, QuantityName, format_exact, format_rate, format_size, format_time

Value = float | int | str

DEFAULT_VALUES = 25
"""How many values a range has unless it says."""

MOST_VALUES = 10_000

RUN_KEYS = ("ranks", "batch", "batch_per_rank")
"""What is varied of a run itself: whole numbers."""

SETTING = "strategy."
"""What a key of a strategy's setting begins with."""

_QUANTITY: Mapping[str, QuantityName] = {
    "links.rate": "rate",
    "links.latency": "time",
    "inner.rate": "rate",
    "inner.latency": "time",
    "device.memory_rate": "rate",
    "device.memory": "size",
    "device.launch_overhead": "time",
}


@dataclass(frozen=True)
class Axis:
    """One thing that is varied.

    Attributes:
        key: "ranks", "batch", "batch_per_rank", "strategy.SETTING", or a place of the cluster as `changed` takes it.
        values: rising where they are numbers; SI units.
        quantity: what they are; None for plain numbers and words.
    """

    key: str
    values: tuple[Value, ...]
    quantity: QuantityName | None = None

    @property
    def whole(self) -> bool:
        """Whether there are only whole numbers: what lies between two of them is one, too."""
        return all(isinstance(value, int) for value in self.values)

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers, so that there are curves."""
        return not any(isinstance(value, str) for value in self.values)

    @property
    def log(self) -> bool:
        """Whether values are far enough apart to be drawn in logarithms."""
        numbers = [float(value) for value in self.values if not isinstance(value, str)]
        return self.numeric and min(numbers) > 0 and max(numbers) >= 8 * min(numbers)

    def text(self, value: Value) -> str:
        """A value for people."""
        if isinstance(value, str):
            return value
        match self.quantity:
            case "rate":
                return format_rate(value, "B" if self.key.startswith("device") else "bit")
            case "time":
                return format_time(value)
            case "size":
                return format_size(value)
            case None:
                return f"{value:.6g}"
            case other:
                return QUANTITIES[other].format(value)

    def setting(self, value: Value) -> str:
        """A value as a strategy's text has it."""
        return format_exact(value, self.quantity).replace(" ", "") if self.quantity else str(value)  # type: ignore[arg-type]


def parse_vary(text: str) -> Axis:
    """The axis that a text stands for; ConfigurationError says what is wrong with it."""
    key, equals, rest = (part.strip() for part in text.partition("="))
    if not (key and equals and rest):
        raise ConfigurationError(f"--vary {text!r} varies nothing; write it like links.rate=1Gbit/s..100Gbit/s")
    _check_key(key)
    if ".." in rest:
        return _range(key, rest)
    read = [_value(part.strip(), key) for part in rest.split(",")]
    quantity = _same(key, rest, [quantity for _, quantity in read])
    values = tuple(dict.fromkeys(value for value, _ in read))
    numbers = [value for value in values if not isinstance(value, str)]
    if numbers and len(numbers) < len(values):
        raise ConfigurationError(f"--vary {text!r} mixes numbers and words")
    return _checked(Axis(key, tuple(sorted(numbers)) if numbers else values, quantity))


def check_axis(axis: Axis, cluster: Cluster) -> None:
    """ConfigurationError where a cluster has no such place, or one of another quantity."""
    if axis.key in RUN_KEYS or axis.key.startswith(SETTING):
        return
    quantity = _quantity_at(cluster, axis.key)
    if axis.key not in KEYS and quantity and quantity != axis.quantity:
        raise UnitError(f"--vary {axis.key} takes a {quantity} with its unit, like {QUANTITIES[quantity].example!r}")
    for value in (axis.values[0], axis.values[-1]):
        changed(cluster, axis.key, value)


def _quantity_at(cluster: Cluster, key: str) -> QuantityName | None:
    """What stands at a place of a cluster file, if it is a text with a unit."""
    found: object = cluster.model_dump(mode="json", exclude_none=True)
    for step in key.replace("[", ".").replace("]", "").split("."):
        if isinstance(found, Mapping):
            found = found.get(step)
        elif isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
    return _value(found, key)[1] if isinstance(found, str) else None


def _check_key(key: str) -> None:
    known = (*RUN_KEYS, *KEYS)
    if key in known or key.startswith(SETTING) or "." in key:
        return
    near = nearest(key, known)
    hint = f"; did you mean {near!r}?" if near else ""
    raise ConfigurationError(
        f"--vary {key!r} is nothing that can be varied{hint}\n"
        f"  known: {', '.join(known)}, {SETTING}SETTING, or a place of the cluster's file like topology.wire.rate"
    )


def _range(key: str, text: str) -> Axis:
    ends, _, count = text.partition(":")
    low_text, _, high_text = ends.partition("..")
    (low, one), (high, other) = _value(low_text.strip(), key), _value(high_text.strip(), key)
    quantity = _same(key, text, [one, other])
    if isinstance(low, str) or isinstance(high, str):
        raise ConfigurationError(f"--vary {key}={text}: a range goes from a number to a number")
    if not low < high:
        raise ConfigurationError(f"--vary {key}={text}: a range rises; give the smaller value first")
    whole = isinstance(low, int) and isinstance(high, int) and key not in KEYS
    if not count and whole:
        return _checked(Axis(key, _doubled(int(low), int(high)), quantity))
    values: Sequence[Value] = _spread(float(low), float(high), _count(key, text, count))
    if whole:
        values = sorted({round(float(value)) for value in values})
    else:  # six digits read better, and the ends are as given
        values = [low, *(float(f"{value:.6g}") for value in values[1:-1]), high]
    return _checked(Axis(key, tuple(values), quantity))


def _count(key: str, text: str, count: str) -> int:
    if not count:
        return DEFAULT_VALUES
    if not count.strip().isdigit() or not 2 <= int(count) <= MOST_VALUES:
        raise ConfigurationError(f"--vary {key}={text}: {count!r} is no number of values, 2 to {MOST_VALUES}")
    return int(count)


def _spread(low: float, high: float, count: int) -> list[float]:
    """Values equally far apart, in logarithms where there is no zero."""
    shares = [index / (count - 1) for index in range(1, count - 1)]
    if low > 0:
        inner = [low * math.exp(share * math.log(high / low)) for share in shares]
    else:
        inner = [low + share * (high - low) for share in shares]
    return [low, *inner, high]


def _doubled(low: int, high: int) -> tuple[int, ...]:
    values, value = [], max(low, 1)
    while value < high:
        values.append(value)
        value *= 2
    return (*([low] if low < 1 else []), *values, high)


def _value(text: str, key: str) -> tuple[Value, QuantityName | None]:
    """A number, a quantity with its unit, or a word."""
    for kind in (int, float):
        try:
            return kind(text), None
        except ValueError:
            continue
    if text[:1].isdigit() or text[:1] == ".":
        for name, quantity in QUANTITIES.items():
            try:
                return quantity.parse(text), name  # type: ignore[return-value]  # the keys are the names
            except UnitError:
                continue
        raise UnitError(f"{key}: {text!r} has an unknown unit; write a value like 25Gbit/s, 50us, 4MiB or 8")
    return text, None


def _same(key: str, text: str, quantities: Sequence[QuantityName | None]) -> QuantityName | None:
    """The one quantity of all values, which is that of the key."""
    expected = _QUANTITY.get(key)
    if key in KEYS or key in RUN_KEYS:
        wrong = next((found for found in quantities if found != expected), expected)
        if wrong != expected or (None in quantities and expected):
            needs = (
                f"a {expected} with its unit, like {QUANTITIES[expected].example!r}" if expected else "plain numbers"
            )
            raise UnitError(f"--vary {key}={text}: {key} takes {needs}")
    if len(set(quantities)) > 1:
        raise UnitError(f"--vary {key}={text}: the values are of different kinds")
    return quantities[0]


def _checked(axis: Axis) -> Axis:
    if axis.key in RUN_KEYS and not (axis.whole and min(map(int, axis.values)) >= 1):
        raise ConfigurationError(f"--vary {axis.key}: takes whole numbers from 1 on")
    if axis.key in KEYS and not axis.numeric:
        raise ConfigurationError(f"--vary {axis.key}: takes numbers, not {axis.values[0]!r}")
    if axis.key in KEYS and axis.quantity is None:  # a factor may lie between whole numbers
        return replace(axis, values=tuple(float(value) for value in axis.values))
    return axis
