"""The types of the cluster's fields: quantities with units, counts and references to nodes.

A quantity may be given as text with a unit or, in Python, as an SI number; with `TEXT_ONLY` set in the validation
context, as files do, a bare number is refused. In JSON mode it is dumped as the shortest text that reads back exactly.
"""

import math
from collections.abc import Callable, Sized
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo

from geartrain.errors import UnitError
from geartrain.units import QUANTITIES, QuantityName

TEXT_ONLY = "text_only"
UNREACHABLE = "an unreachable peer, zero bandwidth"

DataType = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
_Items = TypeVar("_Items", bound=Sized)
Reader = Callable[[Any, ValidationInfo], float]


def _reader(quantity: QuantityName, zero_means: str = "") -> Reader:
    """Reads one quantity; with `zero_means`, zero is refused and the text says what it would mean."""
    kind = QUANTITIES[quantity]

    def read(value: Any, info: ValidationInfo) -> float:
        strict = bool(info.context and info.context.get(TEXT_ONLY))
        bare = isinstance(value, (int, float)) and not isinstance(value, bool)
        number: float = value if bare and not strict else kind.parse(value)
        if not (math.isfinite(number) and number >= 0):
            raise UnitError(f'{value!r} is no {kind.name}; give a finite one, zero or more, like "{kind.example}".')
        if zero_means and number == 0:
            raise UnitError(f'{value!r} means {zero_means}; give a {kind.name} above zero, like "{kind.example}".')
        return number

    return read


def _cell(read: Reader) -> Callable[[Any, ValidationInfo], float | None]:
    """Reads a cell of a table, where "-" (in Python also None) stands on the diagonal."""
    return lambda value, info: None if value is None or value == "-" else read(value, info)


def _writer(quantity: QuantityName) -> PlainSerializer:
    def write(value: float | None) -> str:
        return "-" if value is None else QUANTITIES[quantity].format_exact(value)

    return PlainSerializer(write, return_type=str, when_used="json")


_read_wire_rate = _reader("rate", UNREACHABLE)
_read_time = _reader("time")

WireRate = Annotated[float, BeforeValidator(_read_wire_rate), _writer("rate")]
MemoryRate = Annotated[float, BeforeValidator(_reader("rate", "memory that cannot be read")), _writer("rate")]
Flops = Annotated[float, BeforeValidator(_reader("flops", "a device that never finishes")), _writer("flops")]
Watts = Annotated[float, BeforeValidator(_reader("power")), _writer("power")]
Price = Annotated[float, BeforeValidator(_reader("price")), _writer("price")]
Time = Annotated[float, BeforeValidator(_read_time), _writer("time")]
Size = Annotated[int, BeforeValidator(_reader("size", "room for nothing")), _writer("size")]
HeaderSize = Annotated[int, BeforeValidator(_reader("size")), _writer("size")]
RateCell = Annotated[float | None, BeforeValidator(_cell(_read_wire_rate)), _writer("rate")]
TimeCell = Annotated[float | None, BeforeValidator(_cell(_read_time)), _writer("time")]


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def not_empty(value: _Items) -> _Items:
    """Refuses what has no items; unlike a minimal length, it stays silent when single items were refused already."""
    if not len(value):
        raise ValueError("is empty; give at least one")
    return value


def _count(value: Any) -> Any:
    if _is_whole(value, 1) or value == "any":
        return value
    raise ValueError(f'{value!r} is no count; give a whole number above zero, or "any" (as many as a run needs)')


def _node_ref(value: Any) -> Any:
    if isinstance(value, str) or _is_whole(value, 0):
        return value
    raise ValueError(f'{value!r} is no node; give an index from 0, a name like "node-3", a group\'s name, or "all"')


NodeCount = Annotated[int | Literal["any"], BeforeValidator(_count)]
NodeRef = Annotated[int | str, BeforeValidator(_node_ref)]
Count = Annotated[int, Field(gt=0, strict=True)]
Index = Annotated[int, Field(ge=0, strict=True)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class Spec(BaseModel):
    """Base of all cluster values: frozen, and a key that is not known is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
