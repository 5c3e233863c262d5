"""Text with a unit <-> SI numbers.

Outside the program a quantity is text with its unit ("25 Gbit/s", "50 us", "80 GiB"); inside it is a plain number of
seconds, bytes, bytes per second, FLOP, FLOP per second, watts or USD per second. A number without a unit is never
accepted as text.

    parse_rate("25 Gbit/s")  ->  3.125e9      bytes per second
    parse_time("50 us")      ->  5e-05        seconds
    parse_size("80 GiB")     ->  85899345920  bytes

Case matters: `b` and `bit` are bits, `B` is 8 bits; `k M G T P E` are powers of 1000, `Ki Mi Gi Ti Pi` powers of 1024;
`ms` is a thousandth of a second and `Ms` is nothing. Parsing and exact formatting go through fractions, so both are
correctly rounded and `parse(format_exact(x)) == x` for every finite x >= 0.
"""

import difflib
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from geartrain.errors import UnitError

QuantityName = Literal["rate", "time", "size", "flops", "flop", "power", "price"]

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
# Exponents are held to three digits: "1e999999999 B" would otherwise build a number of a billion digits.
_TEXT = re.compile(r"\s*([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d{1,3}))?\s*([^\d\s.+-].*?)?\s*")


def _prefixed(unit: str, factor: Fraction, binary: bool = True) -> dict[str, Fraction]:
    prefixes = _DECIMAL | (_BINARY if binary else {})
    return {prefix + unit: factor * scale for prefix, scale in prefixes.items()}


_BIT = Fraction(1, 8)
_SIZES = _prefixed("B", Fraction(1)) | _prefixed("bit", _BIT) | _prefixed("b", _BIT)
_TIMES = {
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "\u00b5s": Fraction(1, 10**6),  # the micro sign
    "\u03bcs": Fraction(1, 10**6),  # the Greek letter, which looks the same
    "ns": Fraction(1, 10**9),
    "ps": Fraction(1, 10**12),
    "min": Fraction(60),
    "h": Fraction(3600),
}


@dataclass(frozen=True)
class Quantity:
    """One kind of quantity: the units it may be written in, and the two directions between text and number.

    `readable` are the units used to write for people and `exact` those tried for exact text, both smallest first.
    """

    name: str
    units: Mapping[str, Fraction]
    example: str
    readable: tuple[str, ...]
    exact: tuple[str, ...]
    whole: bool = False

    def parse(self, text: str) -> float:
        """The SI number that `text` stands for; UnitError for anything but a number >= 0 followed by a unit."""
        number, unit = self._split(text)
        if unit not in self.units:
            raise UnitError(f"{text!r} has the unknown unit {unit!r}. {self._near(unit)}{self._expected()}")
        value = number * self.units[unit]
        if value > self._largest():
            raise UnitError(f"{text!r} is too large to compute with. {self._expected()}")
        return math.ceil(value) if self.whole else float(value)

    def format(self, value: float, units: tuple[str, ...] = (), digits: int = 4) -> str:
        """`value` for people, rounded to `digits` significant digits, in the largest fitting unit."""
        units = units or self.readable
        self._check(value)
        for unit in reversed(units):
            scaled = float(f"{float(value / self.units[unit]):.{digits}g}")
            if scaled >= 1 or unit == units[0]:
                plain = 10**digits <= scaled < 10**6
                return f"{scaled:.0f} {unit}" if plain else f"{scaled:.{digits}g} {unit}"
        raise AssertionError("unreachable: the smallest unit always fits")

    def format_exact(self, value: float) -> str:
        """The shortest text that parses back to exactly `value`."""
        self._check(value)
        if self.whole and (value != int(value) or value > self._largest()):
            raise UnitError(f"{value!r} cannot be written exactly as a {self.name}: it must be whole and below 2**63.")
        best = f"{value!r} {self.exact[0]}"
        for unit in self.exact:
            quotient = Fraction(value) / self.units[unit]
            if quotient >= 2**1023 or (quotient and quotient < Fraction(1, 10**300)):
                continue
            number = repr(float(quotient)).removesuffix(".0") if quotient.denominator > 1 else str(quotient)
            text = f"{number} {unit}"
            if len(text) < len(best) and self._reads_as(text, value):
                best = text
        return best

    def _reads_as(self, text: str, value: float) -> bool:
        try:
            return self.parse(text) == value
        except UnitError:  # rounded up, past the largest number
            return False

    def _split(self, text: object) -> tuple[Fraction, str]:
        if isinstance(text, bool) or not isinstance(text, (str, int, float)):
            raise UnitError(f"{text!r} is no {self.name}. {self._expected()}")
        if not isinstance(text, str):
            raise UnitError(f"{text!r} is a bare number: which unit? {self._expected()}")
        found = _TEXT.fullmatch(text)
        if not found:
            raise UnitError(f"{text!r} is no {self.name}. {self._expected()}")
        sign, digits, exponent, unit = found.groups()
        if unit is None:
            raise UnitError(f"{text!r} is a bare number: which unit? {self._expected()}")
        if sign == "-":
            raise UnitError(f"{text!r} is negative; a {self.name} is zero or more. {self._expected()}")
        return Fraction(digits) * Fraction(10) ** int(exponent or 0), unit

    def _near(self, unit: str) -> str:
        def plain(name: str) -> str:
            return re.sub("ps$", "/s", name.lower().replace("bit", "b").replace("flops", "flop/s"))

        near = [name for name in self.units if plain(name) == plain(unit)]
        near = near or difflib.get_close_matches(unit, self.units, n=2, cutoff=0.5)
        if not near:
            return ""
        return f"Nearest: {', '.join(f'{name!r} ({self._meaning(name)})' for name in near)}. "

    def _meaning(self, unit: str) -> str:
        return f"{float(self.units[unit]):g} {self.exact[0]}"

    def _expected(self) -> str:
        return f'Write a {self.name} as text with a unit, like "{self.example}"; case matters.'

    def _largest(self) -> int:
        return 2**63 - 1 if self.whole else int(sys.float_info.max)

    def _check(self, value: float) -> None:
        if not (math.isfinite(value) and value >= 0):
            raise UnitError(f"{value!r} cannot be written as a {self.name}: it must be finite and not negative.")


RATE = Quantity(
    name="rate",
    units={f"{unit}/s": factor for unit, factor in _SIZES.items()},
    example="25 Gbit/s",
    readable=("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"),
    exact=("B/s", "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "kB/s", "MB/s", "GB/s", "TB/s"),
)
TIME = Quantity(
    name="time",
    units=_TIMES,
    example="50 us",
    readable=("ps", "ns", "us", "ms", "s"),
    exact=("s", "ms", "us", "ns"),
)
SIZE = Quantity(
    name="size",
    units=_SIZES,
    example="80 GiB",
    readable=("B", "kB", "MB", "GB", "TB", "PB"),
    exact=("B", "kB", "MB", "GB", "KiB", "MiB", "GiB", "TiB"),
    whole=True,
)
FLOPS = Quantity(
    name="compute rate",
    units=_prefixed("FLOP/s", Fraction(1), binary=False),
    example="312 TFLOP/s",
    readable=("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s"),
    exact=("FLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"),
)
FLOP = Quantity(
    name="count of FLOP",
    units=_prefixed("FLOP", Fraction(1), binary=False),
    example="6 GFLOP",
    readable=("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"),
    exact=("FLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"),
)
POWER = Quantity(
    name="power",
    units=_prefixed("W", Fraction(1), binary=False),
    example="700 W",
    readable=("W", "kW", "MW"),
    exact=("W", "kW", "MW"),
)
PRICE = Quantity(
    name="price",
    units={"USD/s": Fraction(1), "USD/h": Fraction(1, 3600)},
    example="32.77 USD/h",
    readable=("USD/h",),
    exact=("USD/s", "USD/h"),
)
QUANTITIES: Mapping[str, Quantity] = {
    "rate": RATE,
    "time": TIME,
    "size": SIZE,
    "flops": FLOPS,
    "flop": FLOP,
    "power": POWER,
    "price": PRICE,
}


def parse_rate(text: str) -> float:
    """Bytes per second: `parse_rate("25 Gbit/s") == 3.125e9`."""
    return RATE.parse(text)


def parse_time(text: str) -> float:
    """Seconds: `parse_time("50 us") == 5e-5`."""
    return TIME.parse(text)


def parse_size(text: str) -> int:
    """Bytes, a part of a byte counted as a whole one: `parse_size("1.5 KiB") == 1536`."""
    return int(SIZE.parse(text))


def parse_flops(text: str) -> float:
    """FLOP per second: `parse_flops("312 TFLOP/s") == 3.12e14`."""
    return FLOPS.parse(text)


def parse_flop(text: str) -> float:
    """A count of floating-point operations: `parse_flop("6 GFLOP") == 6e9`."""
    return FLOP.parse(text)


def format_rate(value: float, unit: Literal["bit", "B"] = "bit") -> str:
    """A rate for people, in bits (wires) or bytes (memory): `format_rate(3.125e9) == "25 Gbit/s"`."""
    return RATE.format(value, tuple(f"{prefix}{unit}/s" for prefix in ("", "k", "M", "G", "T")))


def format_time(value: float) -> str:
    """A time for people: `format_time(0.000412) == "412 us"`; minutes from two minutes on, hours from two hours on."""
    if value == 0:
        return "0 s"
    if value >= 7200:
        return TIME.format(value, ("h",))
    return TIME.format(value, ("min",)) if value >= 120 else TIME.format(value)


def format_size(value: float, binary: bool = False) -> str:
    """A size for people: `format_size(1.2e6) == "1.2 MB"`; with `binary`, "80 GiB"."""
    return SIZE.format(value, ("B", "KiB", "MiB", "GiB", "TiB", "PiB") if binary else ())


def format_flops(value: float) -> str:
    """A compute rate for people: `format_flops(3.12e14) == "312 TFLOP/s"`."""
    return FLOPS.format(value)


def format_flop(value: float) -> str:
    """An amount of compute for people: `format_flop(6e9) == "6 GFLOP"`."""
    return FLOP.format(value)


def format_exact(value: float, quantity: QuantityName) -> str:
    """The shortest text that parses back to exactly `value`: `format_exact(3.125e9, "rate") == "25 Gbit/s"`."""
    return QUANTITIES[quantity].format_exact(value)
