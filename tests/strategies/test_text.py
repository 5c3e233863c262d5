"""Strategies as text: reading, refusing, and reading back what was written."""

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.errors import StrategyError, UnknownName
from geartrain.strategies import TABLE, from_table, parse, parse_list
from geartrain.strategies.gear import Gear
from geartrain.strategies.parameter_server import ParameterServer
from geartrain.strategies.peer_to_peer import PeerToPeer
from geartrain.strategies.single import Single
from geartrain.strategies.spp import SPP
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import describe


def any_value(hint, default):
    """Values of a field, drawn from its type alone, so that new methods are covered too; of a text its default."""
    if hint is str or str in get_args(hint):
        return st.just(default)
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(1, 2**40)
    if hint is float:
        return st.floats(0, 1)  # shares and rates
    choices = get_args(hint)
    if int in choices:
        return st.none() | st.integers(1, 200) | st.integers(1, 2**50)
    if float in choices:
        return st.none() | st.floats(0, 1)
    return st.sampled_from(choices)


def any_strategy(kind):
    hints = get_type_hints(kind)
    settings = st.fixed_dictionaries(
        {field.name: any_value(hints[field.name], field.default) for field in fields(kind)}
    )
    return settings.map(lambda values: made(kind, values)).filter(lambda strategy: strategy is not None)


def made(kind, values):
    """None where values do not go together, such as a delay longer than its period."""
    try:
        return kind(**values)
    except StrategyError:
        return None


PLANNED = SPP(micro_batches=2, plan="2@0/1@1+2", order="F2B2/FBFB")
TEXTS = [
    PLANNED,
    Gear(cuts="hidden", speeds="1-4", workers="3-1"),
    Gear(cuts="measured", workers="measured"),
]
strategies = st.sampled_from(TEXTS) | st.one_of([any_strategy(entry.kind) for entry in TABLE.values()])


@given(strategies)
def test_text_reads_back(strategy):
    assert parse(str(strategy)) == strategy


@given(st.lists(strategies, min_size=1, max_size=5))
def test_lists_read_back(several):
    assert parse_list(",".join(map(str, several))) == several


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("single", Single()),
        (" synchronous ", Synchronous()),
        ("synchronous:bucket_size=none, overlap = false", Synchronous(bucket_size=None, overlap=False)),
        ("synchronous:bucket_size=25 MiB", Synchronous()),
        ("synchronous:bucket_size=1kB", Synchronous(bucket_size=1000)),
        ("parameter_server:servers=4,shard=tensors", ParameterServer(servers=4, shard="tensors")),
        ("spp:micro_batches=2,plan=2@0/1@1+2,order=F2B2/FBFB", PLANNED),
    ],
)
def test_reads(text, strategy):
    assert parse(text) == strategy


def test_a_setting_belongs_to_the_strategy_on_its_left():
    text = "synchronous,overlap=false,parameter_server:servers=4,placement=own,single,peer_to_peer:kind=broadcast"
    assert parse_list(text) == [
        Synchronous(overlap=False),
        ParameterServer(servers=4),
        Single(),
        PeerToPeer(kind="broadcast"),
    ]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("synchronos", UnknownName, ["no strategy is called 'synchronos'", "did you mean 'synchronous'"]),
        ("", UnknownName, ["no strategy"]),
        ("synchronous:overlp=true", UnknownName, ["no key of strategy 'synchronous'", "did you mean 'overlap'"]),
        ("synchronous:bucket_size=25", StrategyError, ["bucket_size='25'", "which unit?"]),
        ("synchronous:bucket_size=25 apples", StrategyError, ["unknown unit 'apples'"]),
        ("synchronous:bucket_size=0B", StrategyError, ["too small", "1 or more"]),
        ("synchronous:overlap=maybe", StrategyError, ["overlap='maybe'", "true or false"]),
        ("synchronous:overlap=none", StrategyError, ["true or false"]),
        ("synchronous:exchange=star", StrategyError, ["exchange='star'", "native or ring"]),
        ("parameter_server:servers=two", StrategyError, ["servers='two'", "a whole number"]),
        ("parameter_server:servers=0", StrategyError, ["servers=0 is too small"]),
        (f"gear:gears={2**40}", StrategyError, ["is too large; give 1024 or less"]),
        ("parameter_server:servers=2,servers=3", StrategyError, ["'servers' is given twice"]),
        ("parameter_server:servers", StrategyError, ["'servers' in", "key=value"]),
    ],
)
def test_refuses(text, error, words):
    with pytest.raises(error) as caught:
        parse(text)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(("text", "word"), [("single,,single", "empty item"), ("overlap=false,single", "begins with")])
def test_refuses_lists(text, word):
    with pytest.raises(StrategyError, match=word):
        parse_list(text)


def test_tables_of_a_file():
    table = {"name": "synchronous", "overlap": False, "bucket_size": "1 MiB"}
    assert from_table(table) == Synchronous(overlap=False, bucket_size=2**20)
    assert from_table({"name": "synchronous", "bucket_size": "none"}) == Synchronous(bucket_size=None)
    with pytest.raises(StrategyError, match="needs its name"):
        from_table({"overlap": False})
    with pytest.raises(StrategyError, match="bare number"):
        from_table({"name": "synchronous", "bucket_size": 25})


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Synchronous(exchange="star"), "native or ring"),
        (lambda: Synchronous(overlap=1), "true or false"),
        (lambda: ParameterServer(servers=1.5), "a whole number"),
        (lambda: ParameterServer(servers=True), "a whole number"),
        (lambda: PeerToPeer(kind=None), "sharded or broadcast"),
    ],
)
def test_values_made_in_python_are_checked_too(make, word):
    with pytest.raises(StrategyError, match=word):
        make()


def test_more_servers_than_workers_to_live_beside_are_refused():
    with pytest.raises(StrategyError, match="use servers=2"):
        ParameterServer(servers=3, placement="colocated").roles(2)


def test_lists_of_keys():
    assert describe(Synchronous)["bucket_size"].endswith("or none (25MiB)")
    assert describe(Single) == {}


@pytest.mark.parametrize("name", TABLE)
def test_the_table_names_class_and_paper(name):
    kind = TABLE[name].kind
    assert kind.name == name and kind.paper.where and TABLE[name].summary
    assert kind() == parse(name)
