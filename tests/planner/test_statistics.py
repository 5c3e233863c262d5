"""Steps to a target, read off the folder of a grid."""

import json

import pytest

from geartrain.errors import ConfigurationError
from geartrain.planner.statistics import Statistics


def row(strategy, ranks, steps, reached=True, cluster="local", error=None):
    return {
        "strategy": strategy,
        "ranks": ranks,
        "steps": steps,
        "time_to_target": 1.0 if reached else None,
        "cluster": cluster,
        "error": error,
    }


def folder(path, rows, **asked):
    grid = {"format": 1, "asked": {"task": "digits", "target_loss": 0.5, **asked}, "cells": {"a": {"batch": 64}}}
    (path / "grid.json").write_text(json.dumps(grid))
    if rows is not None:
        (path / "compare.json").write_text(json.dumps(rows))
    return path


def test_ratios_with_the_most_workers(tmp_path):
    rows = [
        row("synchronous", 2, 40),
        row("local_sgd", 2, 60),
        row("synchronous", 4, 50),
        row("local_sgd:period=8", 4, 75),
        row("top_k", 4, 100, reached=False),
        row("dear", 4, 50, cluster="other"),
        row("diloco", 4, 10, error="it broke"),
    ]
    found = Statistics.read(folder(tmp_path, rows))
    assert found.factors == {"synchronous": 1.0, "local_sgd:period=8": 1.5}
    assert found.unreached == {"top_k": 100}
    assert (found.task, found.target, found.ranks, found.batch) == ("digits", "loss of 0.5", 4, 64)
    assert found.origin.startswith("steps to a loss of 0.5 measured on digits with 4 workers and a batch of 64")


@pytest.mark.parametrize(
    ("rows", "asked", "message"),
    [
        (None, {}, "has not come to its end"),
        ([row("synchronous", 2, 40)], {"target_loss": None}, "had no target"),
        ([row("local_sgd", 2, 40)], {}, "no run of synchronous came to the target"),
        ([row("synchronous", 2, 40, reached=False)], {}, "no run of synchronous came to the target"),
    ],
)
def test_folders_that_say_nothing(tmp_path, rows, asked, message):
    with pytest.raises(ConfigurationError, match=message):
        Statistics.read(folder(tmp_path, rows, **asked))


def test_no_folder_of_a_grid(tmp_path):
    with pytest.raises(ConfigurationError, match="grid"):
        Statistics.read(tmp_path / "none")
