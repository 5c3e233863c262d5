"""What stands behind a workload's name: `NAME:key=value,key=value`.

dtype           fp32, tf32, bf16, fp16, bf16_mixed
checkpointing   none, blocks, all, or some blocks by number, like 0-11+20
optimizer       sgd, momentum, adamw
anything else   a setting of that workload's own, like length=512 of a text model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geartrain.errors import ConfigurationError, UnknownName
from geartrain.workload.choices import CHECKPOINTING, DTYPES, is_checkpointing

OPTIMIZERS = ("sgd", "momentum", "adamw")

COMMON: Mapping[str, tuple[str, ...]] = {
    "dtype": DTYPES,
    "checkpointing": CHECKPOINTING,
    "optimizer": OPTIMIZERS,
}
"""Settings of every workload -> what they may be."""

Value = int | float | str | bool


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Choices for a workload; None: as its model has it.

    Attributes:
        dtype, optimizer, checkpointing: as in `COMMON`.
        own: the other ones, by name.
    """

    dtype: str | None = None
    optimizer: str | None = None
    checkpointing: str = "none"
    own: Mapping[str, Value] = field(default_factory=dict)


def split(text: str) -> tuple[str, Settings]:
    """What a text names, and the settings behind its last colon if there are any.

    Raises ConfigurationError where a piece is no `key=value` or comes twice, UnknownName for a value that is not known.
    """
    name, colon, tail = text.rpartition(":")
    if not colon or "=" not in tail:
        return text, Settings()
    found: dict[str, str] = {}
    for piece in tail.split(","):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not (key and equals and value) or key in found:
            raise ConfigurationError(
                f"{piece.strip()!r} in {text!r} is no setting, or comes twice; write {name}:key=value,key=value"
            )
        found[key] = value
    for key, known in COMMON.items():
        if key == "checkpointing" and is_checkpointing(found.get(key, "none")):
            continue
        if key in found and found[key] not in known:
            raise UnknownName(f"{key} of a workload", found[key], known)
    common: dict[str, Any] = {key: found.pop(key) for key in COMMON if key in found}
    return name, Settings(**common, own={key: _value(value) for key, value in found.items()})


def of_their_kind(name: str, given: Mapping[str, Value], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults with what was given put in.

    Args:
        name: of the workload, for messages.
        given: by the user.
        defaults: every setting that there is; a value must be of its default's kind, a tuple lists what it may be.

    Raises UnknownName for a setting or value that is not known, ConfigurationError for one that does not fit.
    """
    values = {key: default[0] if isinstance(default, tuple) else default for key, default in defaults.items()}
    for key, value in given.items():
        if key not in defaults:
            raise UnknownName(f"setting of workload {name!r}", key, [*COMMON, *defaults])
        default = defaults[key]
        if isinstance(default, tuple):
            if value not in default:
                raise UnknownName(f"{key} of workload {name!r}", str(value), default)
        elif isinstance(default, float):
            if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
                raise ConfigurationError(f"{name}: {key}={value!r} does not fit; give a number, zero or more")
        elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigurationError(f"{name}: {key}={value!r} does not fit; give a whole number above zero")
        values[key] = value
    return values


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
