"""The page of a sweep: what was found in words, the map, the curves, all numbers in a table."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from geartrain import __version__
from geartrain.predict.prediction import Prediction
from geartrain.predict.table import number
from geartrain.report.figures import card
from geartrain.report.plot import key
from geartrain.report.svg import breakable, element, text
from geartrain.sweep.picture import curves, swatch, winner_map, winner_of
from geartrain.sweep.points import ONE_NODE, Point, Swept
from geartrain.sweep.words import crossing_text, verdict

_MAP = (
    "Each rectangle has the colour, the hatching and the letter of the strategy with the shortest step, or of one node "
    'where its samples per second are more than those of all; "!": that one does not fit into memory.'
)
_HOW = {
    "Samples": "Higher is better. The dashed line is one node alone, with as many samples for each of its devices.",
    "Exposed": "The share of the step in which the slowest worker stands still while bytes are in flight.",
}


def page(swept: Swept, subject: str, machine: str) -> str:
    """A whole HTML file, which asks the network for nothing.

    Args:
        subject: what is trained.
        machine: on what, and how it was predicted.
    """
    title = f"{subject}: {' and '.join(axis.key for axis in swept.axes)}"
    body = [
        element("header", element("p", "geartrain sweep", cls="kicker") + element("h1", text(title))),
        element("p", text(machine), cls="how"),
        _section("In words", _words(swept)),
        *([_section("Who wins where", _map(swept))] if len(swept.axes) == 2 else ()),
        _section("Curves", _curves(swept)),
        _section("Where the order changes", _crossings(swept)),
        _section("All points", _table(swept)),
        element("footer", text(f"Written by geartrain {__version__}.")),
    ]
    head = [
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        element("title", text(f"geartrain sweep: {title}")),
        f"<style>{_asset('style.css')}</style>",
    ]
    inside = element("main", "\n".join(body)) + '<div id="tip" role="status"></div>'
    script = f"<script>{_asset('script.js')}</script>"
    return f'<!doctype html>\n<html lang="en"><head>{"".join(head)}</head>\n<body>{inside}\n{script}</body></html>\n'


def _asset(name: str) -> str:
    return resources.files("geartrain.report").joinpath(name).read_text(encoding="utf-8")


def _section(title: str, body: str) -> str:
    return element("section", element("h2", text(title)) + element("div", body))


def _words(swept: Swept) -> str:
    first, *rest = verdict(swept)
    said = element("p", text(first), cls="lead") + _list(rest)
    if swept.warnings:
        said += element("h3", "What is odd", cls="part") + _list(swept.warnings)
    return said


def _list(lines: Sequence[str]) -> str:
    return element("ul", "".join(element("li", text(line)) for line in lines)) if lines else ""


def _map(swept: Swept) -> str:
    shown = sorted({index for point in swept.points if (index := winner_of(swept, point)) is not None})
    names = [*swept.strategies, ONE_NODE]
    items = [element("li", swatch(swept, i) + element("span", breakable(names[i]))) for i in shown]
    legend = element("ul", "".join(items), cls="key")
    return element("div", card("Who is fastest", winner_map(swept) + legend, _MAP, "wide"), cls="figures")


def _curves(swept: Swept) -> str:
    drawn = curves(swept)
    if not drawn:
        return element("p", "Words have no order, so there are no curves.", cls="absent")
    cards = [card(title, figure + key(lines), _HOW[title.split()[0]]) for title, figure, lines in drawn]
    return element("div", "".join(cards), cls="figures")


def _crossings(swept: Swept) -> str:
    if not swept.crossings:
        return element("p", "The order is the same everywhere.", cls="absent")
    return _list([crossing_text(swept, one) for one in swept.crossings])


def _table(swept: Swept) -> str:
    heads = [element("th", text(axis.key)) for axis in swept.axes]
    heads += [element("th", breakable(name), cls="n") for name in (*swept.strategies, ONE_NODE)]
    rows = "".join(_row(swept, point) for point in swept.points)
    table = element("table", element("thead", element("tr", "".join(heads))) + element("tbody", rows))
    how = "Samples per second; bold: the most of what fits; !: does not fit into memory; -: cannot be predicted."
    return element("div", table, cls="scroll") + element("p", text(how), cls="how")


def _row(swept: Swept, point: Point) -> str:
    cells = [element("th", text(axis.text(point.at[axis.key]))) for axis in swept.axes]
    for index, one in enumerate((*point.predictions, point.one_node)):
        shown = text(speed_text(one))
        cells.append(element("td", element("b", shown) if index == point.winner else shown, cls="n"))
    return element("tr", "".join(cells))


def speed_text(one: Prediction | str | None) -> str:
    """Samples per second for a table."""
    if not isinstance(one, Prediction):
        return "-"
    return number(one.throughput) + ("" if one.fits else " !")
