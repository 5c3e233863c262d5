"""`geartrain strategies NAME`."""

import json

import pytest

from geartrain.cli import main
from geartrain.cli.one_strategy import describe
from geartrain.strategies import TABLE


def run(words, code=0):
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == code


@pytest.mark.parametrize("name", TABLE)
def test_every_strategy_says_rule_cost_use_source_and_what_its_settings_mean(name):
    told = describe(TABLE[name].kind())
    for key in ("summary", "paper", "rule", "cost", "when to use"):
        assert told[key], f"the docstring of {name} lacks: {key}"
    unexplained = [setting for setting, words in told["settings"].items() if not words["meaning"]]
    assert not unexplained, f"settings of {name} that `Args:` leaves out: {unexplained}"


def test_settings_that_were_given_are_shown(capsys):
    run(["strategies", "parameter_server:servers=4"])
    shown = capsys.readouterr().out
    assert "servers = 4" in shown and "overlap = false" in shown
    assert "w_s <- w_s - lr" in shown and "parameter_server equals synchronous" in shown


def test_as_json(capsys):
    run(["strategies", "synchronous:bucket_size=none", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["bucket_size"]["value"] == "none"
    assert told["needs"] == ["lanes", "attachable", "regroups"]


def test_a_wrong_name_is_told(capsys):
    run(["strategies", "synchronus"], code=2)
    assert "synchronous" in capsys.readouterr().err
