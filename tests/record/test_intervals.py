from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from geartrain.record.intervals import measured, merged, without

PIECES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: (min(ends), max(ends))), max_size=8
)


def cells(intervals):
    return {cell for begin, end in intervals for cell in range(begin, end)}


@given(PIECES)
def test_merged_covers_the_same_and_is_disjoint(pieces):
    union = merged(pieces)
    assert cells(union) == cells(pieces)
    assert all(a[1] < b[0] for a, b in pairwise(union))


@given(PIECES, PIECES)
def test_without_is_the_difference(pieces, holes):
    rest = without(merged(pieces), merged(holes))
    assert cells(rest) == cells(pieces) - cells(holes)
    assert rest == sorted(rest)


@given(PIECES, PIECES)
def test_measured_counts_each_window(pieces, windows):
    frames = merged(windows)
    expected = [len(cells(pieces) & cells([frame])) for frame in frames]
    assert measured(merged(pieces), frames) == expected


def test_windows_that_touch_share_nothing():
    assert measured([(1.0, 3.0)], [(0.0, 2.0), (2.0, 4.0), (4.0, 5.0)]) == [1.0, 1.0, 0.0]
