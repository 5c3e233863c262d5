"""The public names: each exists, is typed, and stands in sorted order."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import geartrain

INIT = Path(geartrain.__file__)


def typed_names() -> dict[str, str]:
    """Name -> module of the imports under TYPE_CHECKING in geartrain/__init__.py."""
    blocks = [
        node
        for node in ast.parse(INIT.read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def test_all_is_sorted_without_repeats():
    assert geartrain.__all__ == sorted(set(geartrain.__all__))


def test_all_is_what_is_exported():
    assert set(geartrain.__all__) == {"__version__", *geartrain._HOMES}
    assert list(geartrain._HOMES) == sorted(geartrain._HOMES)


def test_type_checkers_see_the_same_names():
    assert typed_names() == geartrain._HOMES


@pytest.mark.parametrize("name", geartrain.__all__)
def test_name_is_found(name):
    value = getattr(geartrain, name)
    assert name in dir(geartrain)
    if name in geartrain._HOMES:
        assert value is getattr(import_module(geartrain._HOMES[name]), name)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = geartrain.no_such_name
