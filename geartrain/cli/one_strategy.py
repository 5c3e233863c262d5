"""`geartrain strategies NAME`: the rule of one strategy, what it costs, when to use it, its settings and its source."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

from geartrain.cli.output import print_json, results
from geartrain.runtime.strategy import Strategy
from geartrain.strategies import TABLE, parse
from geartrain.strategies.text import written

_HEADING = re.compile(r"^(Args|Example|Source|Attributes):")
_SETTING = re.compile(r"^    (\w+(?:, \w+)*): ")


def show(text: str, as_json: bool) -> None:
    """Print what a strategy, `name` or `name:key=value,...`, says of itself."""
    strategy = parse(text)
    told = describe(strategy)
    if as_json:
        print_json(told)
        return
    console = results()
    console.print(f"{told['strategy']}  {told['summary']}", markup=False, soft_wrap=True)
    console.print(f"paper: {told['paper']}", style="dim", markup=False, soft_wrap=True)
    for name in ("rule", "cost", "when to use"):
        if told[name]:  # a strategy of one's own may leave parts out
            console.print(f"\n{name}", style="bold")
            console.print(_indented(told[name]), markup=False, soft_wrap=True)
    console.print("\nsettings" if told["settings"] else "\nno settings", style="bold")
    for name, setting in told["settings"].items():
        console.print(f"  {name} = {setting['value']}", markup=False, soft_wrap=True)
        console.print(_indented(setting["meaning"], 6), style="dim", markup=False, soft_wrap=True)
    if told["limits"]:
        console.print("\ngives the same weights, as tests show", style="bold")
        console.print(_indented("\n".join(told["limits"])), markup=False, soft_wrap=True)
    if told["needs"]:
        console.print(f"\nneeds: {', '.join(told['needs'])}", markup=False, soft_wrap=True)


def describe(strategy: Strategy) -> dict[str, Any]:
    """All that is shown, by name: texts are those of the class's docstring."""
    body, sections = _parts(strategy)
    costs = next((at for at, text in enumerate(body) if text.startswith("Costs")), len(body))
    uses = next((at for at, text in enumerate(body) if at > costs and text.startswith("Use")), len(body))
    meanings = _meanings(sections.get("Args", ""))
    settings = {name: {"value": value, "meaning": meanings.get(name, "")} for name, value in written(strategy).items()}
    needs = [field.name for field in fields(strategy.needs) if getattr(strategy.needs, field.name)]
    return {
        "strategy": str(strategy),
        "summary": TABLE[strategy.name].summary if strategy.name in TABLE else "a strategy of your own",
        "paper": str(strategy.paper),
        "rule": "\n\n".join(body[:costs]),
        "cost": "\n\n".join(body[costs:uses]),
        "when to use": "\n\n".join(body[uses:]),
        "settings": settings,
        "limits": [_limit(limit) for limit in strategy.limits()],
        "needs": needs,
        "source": " ".join(sections.get("Source", "").split()),
    }


def _parts(strategy: Strategy) -> tuple[list[str], dict[str, str]]:
    """The paragraphs of the docstring that stand under no heading, and those that do."""
    body, sections = [], {}
    for paragraph in (inspect.getdoc(type(strategy)) or "").split("\n\n"):
        heading = _HEADING.match(paragraph)
        if heading:
            sections[heading[1]] = paragraph[heading.end() :].lstrip(" ").lstrip("\n")
        else:
            body.append(paragraph)
    return body, sections


def _meanings(text: str) -> dict[str, str]:
    """Setting -> what it means, of the lines under Args; several may share a meaning."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        setting = _SETTING.match(line)
        if setting:
            lines = []
            found.update(dict.fromkeys(setting[1].split(", "), lines))
            line = line[setting.end() :]
        lines.append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}


def _limit(limit: Any) -> str:
    only = f" with {limit.num_workers} worker(s)" if limit.num_workers else ""
    return f"{limit.special} {limit.relation} {limit.other}{only}"


def _indented(text: str, by: int = 2) -> str:
    return "\n".join(" " * by + line if line else line for line in text.splitlines())
