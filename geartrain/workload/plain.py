"""Workloads as plain data for JSON, and back: every field of every dataclass, by its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_Kind = TypeVar("_Kind")
_Reader = Callable[[Any], Any]


def as_plain(value: Any) -> Any:
    """A dataclass as a list of its fields' values, tuples as lists; numbers, texts and None as they are."""
    if is_dataclass(value):
        return [as_plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, tuple):
        return [as_plain(item) for item in value]
    return value


def from_plain(kind: type[_Kind], data: Sequence[Any]) -> _Kind:
    """What `as_plain` was given; ValueError where the data is of another shape."""
    made: _Kind = _reader(cast(Any, kind))(data)
    return made


@cache
def _reader(hint: Any) -> _Reader:
    """What makes a value of a type from plain data."""
    if is_dataclass(hint):
        return _dataclass_reader(hint)
    if get_origin(hint) is tuple:
        items = get_args(hint)
        if items[-1] is Ellipsis:
            read = _reader(items[0])
            return lambda data: tuple(map(read, data))
        readers = tuple(map(_reader, items))
        return lambda data: tuple(read(item) for read, item in zip(readers, data, strict=True))
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (kind for kind in get_args(hint) if kind is not type(None))
        read = _reader(inner)
        return lambda data: None if data is None else read(data)
    return lambda data: data


def _dataclass_reader(kind: Any) -> _Reader:
    hints: Mapping[str, Any] = get_type_hints(kind)
    named = [(field.name, _reader(hints[field.name])) for field in fields(kind)]

    def read(data: Any) -> Any:
        return kind(**{name: make(item) for (name, make), item in zip(named, data, strict=True)})

    return read
