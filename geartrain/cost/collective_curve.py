"""Curves of collectives: time over size in three pieces, fitted to measured times."""

from __future__ import annotations

from collections.abc import Sequence

from geartrain.cluster.measured import CollectiveCurve, CollectiveKind, CollectiveTime


def fit_curve(kind: CollectiveKind, ranks: int, times: Sequence[CollectiveTime]) -> CollectiveCurve:
    """The curve that is nearest to the measured times of one kind of collective."""
    raise NotImplementedError("curves of collectives are not fitted yet")
