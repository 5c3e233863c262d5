"""A sweep as a table of fixed width: a row per point, samples per second of each strategy."""

from __future__ import annotations

from rich import box
from rich.table import Table

from geartrain.sweep.page import speed_text
from geartrain.sweep.points import ONE_NODE, Swept

NOTE = 'Samples per second; "*": the most of what fits; "!": does not fit into memory; "-": cannot be predicted.'
"""What the columns mean, to be printed below the table."""


def sweep_table(swept: Swept, title: str) -> Table:
    """All points, in order."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for axis in swept.axes:
        table.add_column(axis.key, justify="right", no_wrap=True)
    for name in swept.strategies:
        table.add_column(name, justify="right", max_width=24, overflow="fold")
    alone = any(point.one_node for point in swept.points)
    if alone:
        table.add_column(ONE_NODE, justify="right", no_wrap=True)
    for point in swept.points:
        cells = [axis.text(point.at[axis.key]) for axis in swept.axes]
        for index, one in enumerate(point.predictions):
            cells.append(speed_text(one) + (" *" if index == point.winner else ""))
        table.add_row(*cells, *([speed_text(point.one_node)] if alone else ()))
    return table
