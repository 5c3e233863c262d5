"""Strategies as text and as tables: `name:key=value,key=value`, and back.

Values are numbers, `true` and `false`, `none`, one of a field's choices, or a size with its unit (`25MiB`; a bare
number for a size is an error). Rendering names only what differs from the defaults; what it gives reads back to an
equal strategy.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from geartrain.errors import StrategyError, UnitError, UnknownName
from geartrain.runtime.strategy import Strategy
from geartrain.units import format_exact, parse_size

Size = Annotated[int, "size"]
"""Bytes, written as text with a unit."""

_Given = TypeVar("_Given", bound=Strategy)


def render(strategy: Strategy) -> str:
    """`name:key=value,...` with the fields that differ from their defaults; reads back to an equal strategy."""
    parts = [
        f"{field.name}={text}"
        for field, text in zip(_fields_of(type(strategy)), written(strategy).values(), strict=True)
        if getattr(strategy, field.name) != field.default
    ]
    return f"{strategy.name}:{','.join(parts)}" if parts else strategy.name


def written(strategy: Strategy) -> dict[str, str]:
    """All settings, in the words of the command line."""
    return {name: _write(getattr(strategy, name), hint) for name, hint in _hints(type(strategy)).items()}


def split_list(text: str) -> list[str]:
    """Cut a list at its commas; an item with `=` and no `:` before it belongs to the strategy on its left."""
    items: list[str] = []
    for piece in (piece.strip() for piece in text.split(",")):
        if not piece:
            raise StrategyError(f"{text!r} has an empty item; write strategies as name:key=value,key=value,name,...")
        if "=" not in piece or ":" in piece.partition("=")[0]:
            items.append(piece)
        elif not items:
            raise StrategyError(f"{text!r} begins with a setting; put the name of a strategy before {piece!r}")
        else:
            items[-1] += ("," if ":" in items[-1] else ":") + piece
    return items


def split_settings(text: str) -> tuple[str, dict[str, str]]:
    """The name and the settings of one strategy."""
    name, _, rest = text.strip().partition(":")
    settings: dict[str, str] = {}
    for piece in rest.split(",") if rest.strip() else []:
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not (key and equals and value):
            raise StrategyError(f"{piece.strip()!r} in {text!r} is no setting; write key=value")
        if key in settings:
            raise StrategyError(f"{key!r} is given twice in {text!r}; leave one of them")
        settings[key] = value
    return name.strip(), settings


def build(kind: type[_Given], settings: Mapping[str, Any]) -> _Given:
    """Make a strategy from settings, each a text or, as in a TOML table, a value of its own type."""
    hints = _hints(kind)
    values = {}
    for key, given in settings.items():
        if key not in hints:
            raise UnknownName(f"key of strategy {kind.name!r}", key, hints)
        values[key] = _read(kind.name, key, given, hints[key])
    return kind(**values)


def check_fields(strategy: Strategy, **least: int) -> None:
    """Refuse values of a wrong type or choice, and numbers below the least one given; None passes where it may."""
    for key, hint in _hints(type(strategy)).items():
        value = getattr(strategy, key)
        if not _fits(value, hint):
            raise _misfit(strategy.name, key, value, hint)
        if key in least and value is not None and value < least[key]:
            raise StrategyError(f"{strategy.name}: {key}={value!r} is too small; give {least[key]} or more")


def check_most(strategy: Strategy, **most: float) -> None:
    """Refuse numbers above the largest one given; None passes."""
    for key, largest in most.items():
        value = getattr(strategy, key)
        if value is not None and not value <= largest:
            raise StrategyError(f"{strategy.name}: {key}={value!r} is too large; give {largest} or less")


def check_share(strategy: Strategy, *keys: str) -> None:
    """Refuse what is no share of a whole, above 0 and at most 1; None passes."""
    for key in keys:
        value = getattr(strategy, key)
        if value is not None and not 0 < value <= 1:
            raise StrategyError(f"{strategy.name}: {key}={value!r} is no share; give a number above 0 and at most 1")


def describe(kind: type[Strategy]) -> dict[str, str]:
    """Key -> what may stand there and its default, for lists."""
    hints = _hints(kind)
    return {
        field.name: f"{_expected(hints[field.name])} ({_write(field.default, hints[field.name])})"
        for field in _fields_of(kind)
        if field.default is not MISSING
    }


def _fields_of(kind: type[Strategy]) -> Sequence[Field[Any]]:
    return fields(kind)  # type: ignore[arg-type]  # every strategy is a dataclass


def _hints(kind: type[Strategy]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in _fields_of(kind)}


def _alternatives(hint: Any) -> tuple[Any, bool]:
    """The type without None, and whether None may stand there."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        return parts[0], len(parts) < len(get_args(hint))
    return hint, False


def _is_size(kind: Any) -> bool:
    return get_origin(kind) is Annotated and "size" in get_args(kind)[1:]


def _read(name: str, key: str, given: Any, hint: Any) -> Any:
    """The value that a text, or a value from a table, stands for."""
    kind, may_be_none = _alternatives(hint)
    text = str(given).lower() if isinstance(given, bool) else str(given).strip()
    if text == "none" and may_be_none:
        return None
    try:
        if _is_size(kind):
            return parse_size(given)
        if get_origin(kind) is Literal:
            return {str(choice): choice for choice in get_args(kind)}[text]
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except UnitError as error:
        raise StrategyError(f"{name}: {key}={given!r} does not fit. {error}") from error
    except (KeyError, ValueError) as error:
        raise _misfit(name, key, given, hint) from error


def _fits(value: Any, hint: Any) -> bool:
    kind, may_be_none = _alternatives(hint)
    if value is None:
        return may_be_none
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    kind = int if _is_size(kind) else kind
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _misfit(name: str, key: str, value: Any, hint: Any) -> StrategyError:
    return StrategyError(f"{name}: {key}={value!r} does not fit; give {_expected(hint)}")


def _expected(hint: Any) -> str:
    kind, may_be_none = _alternatives(hint)
    if _is_size(kind):
        text = "a size in bytes, as text with its unit (like 25MiB)"
    elif get_origin(kind) is Literal:
        text = " or ".join(str(choice) for choice in get_args(kind))
    else:
        text = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]
    return f"{text}, or none" if may_be_none else text


def _write(value: Any, hint: Any) -> str:
    kind, _ = _alternatives(hint)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if _is_size(kind):
        return format_exact(value, "size").replace(" ", "")
    return str(value) if isinstance(value, str) else repr(value)
