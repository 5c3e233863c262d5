"""Hit rates of embedding tables against the formulas of the source, a drawn sequence, and what must hold."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.cost.lookup import hit_rate, lookup_seconds
from geartrain.errors import ConfigurationError
from geartrain.workload.spec import Lookup


def uniform(rows, lookups, room):
    """The source's, row by row."""
    unique = rows * (1 - (1 - 1 / rows) ** lookups)
    if unique > room:
        return 1 - (room + (lookups - room) * (rows - room) / rows) / lookups
    return 1 - unique / lookups


@pytest.mark.parametrize(
    ("rows", "lookups", "room"), [(1000, 5000, 100), (1000, 200, 900), (50, 10, 60), (10**6, 4096, 500)]
)
def test_alike_rows_are_those_of_the_source(rows, lookups, room):
    assert hit_rate(Lookup(rows, 64, 1.0), lookups, room) == pytest.approx(uniform(rows, lookups, min(room, rows)))


def test_skewed_rows_against_a_drawn_sequence():
    rows, lookups, skew = 3000, 4000, 1.1
    draw = random.Random(0)
    shares = [rank**-skew for rank in range(1, rows + 1)]
    shown = [lookups - len(set(draw.choices(range(rows), shares, k=lookups))) for _ in range(10)]
    assert hit_rate(Lookup(rows, 64, 1.0, skew), lookups, rows) == pytest.approx(sum(shown) / 10 / lookups, abs=0.01)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**7), st.floats(1, 1e6), st.floats(0, 1e6), st.floats(0, 2), st.floats(0, 2))
def test_in_bounds_and_never_slower_when_more_skewed(rows, lookups, room, skew, more):
    usual = hit_rate(Lookup(rows, 64, 1.0, skew), lookups, room)
    assert 0 <= usual <= 1
    # Stretches of rows are taken at their middle, which leaves an error of a few thousandths.
    assert hit_rate(Lookup(rows, 64, 1.0, skew + more), lookups, room) >= usual - 5e-3


def test_limits():
    assert hit_rate(Lookup(10**9, 64, 1.0), 1000, 1000) == pytest.approx(0.0, abs=1e-3)
    assert hit_rate(Lookup(1, 64, 1.0), 1000, 1) == pytest.approx(1 - 1 / 1000)
    assert hit_rate(Lookup(100, 64, 1.0), 0, 10) == 0.0


def test_seconds_by_hand():
    # A table that fits: 8 rows touched of 8, 92 of 100 from the cache; 128 elements are 16 sectors of 32 bytes.
    table = Lookup(8, 128, 10.0)
    hits = 1 - 8 * (1 - (7 / 8) ** 100) / 100
    rates = {"cache": 1 << 20, "cache_rate": 1e9, "memory_rate": 1e9}
    assert lookup_seconds(table, 10, **rates) == pytest.approx(max(hits, 1 - hits) * 100 * 512 / 1e9)
    assert lookup_seconds(table, 10, rest=1e6, **rates) == pytest.approx((1e6 + (1 - hits) * 100 * 512) / 1e9)
    # Rows of 33 elements move as 5 sectors, and narrow rows are slower by a tenth.
    none = {**rates, "cache": 0}
    assert lookup_seconds(Lookup(10**9, 33, 1.0), 5, **none) == pytest.approx(1.1 * 5 * 160 / 1e9)


def test_a_table_without_rows_is_refused():
    with pytest.raises(ConfigurationError, match="at least one row"):
        hit_rate(Lookup(0, 64, 1.0), 10, 10)
