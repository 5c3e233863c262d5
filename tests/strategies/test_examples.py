"""The examples in the docstrings of the methods are run."""

import doctest
import importlib
import sys

import pytest

from geartrain.strategies import TABLE

MODULES = ["geartrain.strategies", *sorted({entry.kind.__module__ for entry in TABLE.values()})]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    importlib.import_module(name)
    failed, attempted = doctest.testmod(sys.modules[name])
    assert attempted and not failed
