"""Cluster files: presets, what a wrong file says, and that dumped clusters load back equal."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.cluster import Cluster, dump_cluster, list_presets, load_cluster, parse_cluster
from geartrain.errors import ClusterError, UnknownName

GOOD = """
name = "pair"
source = "chosen"
[[nodes]]
count = 2
device = { name = "d", memory = "16 GiB", memory_rate = "900 GB/s", flops = { fp32 = "15.7 TFLOP/s" }, source = "-" }
[topology]
kind = "star"
wire = { rate = "25 Gbit/s", latency = "50 us" }
"""
MATRIX = GOOD.split("[topology]")[0] + (
    '[topology]\nkind = "matrix"\nrate = [["-", "1 Gbit/s"], ["2 Gbit/s", "-"]]\n'
    'latency = [["-", "3 ms"], ["4 ms", "-"]]\n'
)


def refused(text):
    with pytest.raises(ClusterError) as caught:
        parse_cluster(text, "lab.toml")
    first, *problems = str(caught.value).split("\n")
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    assert first == f"lab.toml describes no cluster: {count}"
    return [problem.strip() for problem in problems]


def only(text):
    (problem,) = refused(text)
    return problem


def test_good_file():
    cluster = parse_cluster(GOOD)
    assert cluster.num_nodes == 2
    assert cluster.nodes[0].device.flops == {"fp32": 15.7e12}
    assert cluster.topology.wire.goodput == 3.125e9
    assert parse_cluster(MATRIX).topology.rate == ((None, 125e6), (250e6, None))


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_presets(preset):
    cluster = load_cluster(preset.name)
    assert (cluster.name, cluster.summary, cluster.source) == preset
    assert preset.summary and preset.source and "\n" not in preset.summary + preset.source
    assert parse_cluster(dump_cluster(cluster)) == cluster
    assert hash(pickle.loads(pickle.dumps(cluster))) == hash(cluster)


def test_the_presets_there_are():
    assert [preset.name for preset in list_presets()] == [
        "ac922",
        "dgx-2",
        "dgx-a100",
        "dgx-h100",
        "dgx-h200",
        "dgx-v100",
        "ethernet-100g",
        "ethernet-10g",
        "ethernet-1g",
        "ethernet-25g",
        "local",
        "p3",
        "p3dn",
        "ts4",
        "v100x8-25g",
    ]


@pytest.mark.parametrize("gigabits", [1, 10, 25, 100])
def test_ethernet_presets_are_textbook_wires(gigabits):
    wire = load_cluster(f"ethernet-{gigabits}g").topology.wire
    assert (wire.goodput, wire.latency) == (gigabits * 125e6, 50e-6)


def test_unknown_preset_names_the_nearest():
    with pytest.raises(UnknownName) as caught:
        load_cluster("ethernet-52g")
    assert "no cluster preset is called 'ethernet-52g'; did you mean 'ethernet-25g'?" in str(caught.value)
    assert "v100x8-25g" in str(caught.value)


def test_files_by_path(tmp_path):
    file = tmp_path / "lab.toml"
    file.write_text(GOOD, encoding="utf-8")
    assert load_cluster(file) == load_cluster(str(file)) == parse_cluster(GOOD)
    with pytest.raises(ClusterError, match=r"cannot read cluster file .*absent\.toml"):
        load_cluster(tmp_path / "absent.toml")
    with pytest.raises(ClusterError, match="cannot read cluster file"):
        load_cluster(Path("absent"))


def test_what_is_no_toml():
    with pytest.raises(ClusterError, match=r"lab\.toml is no TOML: .*line 1"):
        parse_cluster("name = x", "lab.toml")


def test_unknown_keys_name_the_nearest_where_they_stand():
    assert only(GOOD.replace("source =", "memry = 1, source =").replace("memry = 1, ", "", 1)) == (
        "nodes[0].device.memry: unknown key (did you mean 'memory'?); "
        "known here: flops, idle_power, launch_overhead, memory, memory_rate, name, power, source"
    )
    assert only("sumary = 'x'\n" + GOOD).startswith(
        "sumary: unknown key (did you mean 'summary'?); known here: collectives, measured, name,"
    )
    assert only(GOOD.replace("latency", "mtuu = 1, latency")).startswith(
        "topology.wire.mtuu: unknown key (did you mean 'mtu'?)"
    )
    assert only(GOOD + "core_latency = '1 us'").startswith(
        "topology.core_latency: unknown key; known here: inner, kind"
    )


def test_bare_numbers_are_refused_in_files_only():
    assert only(GOOD.replace('"50 us"', "50e-6")) == (
        "topology.wire.latency: 5e-05 is a bare number: which unit? "
        'Write a time as text with a unit, like "50 us"; case matters.'
    )
    assert "topology.rate[0][1]: 3 is a bare number" in only(MATRIX.replace('"1 Gbit/s"', "3"))
    data = parse_cluster(GOOD).model_dump()
    assert Cluster.model_validate(data) == parse_cluster(GOOD)


def test_all_problems_are_listed():
    text = GOOD.replace('"25 Gbit/s"', '"25 Gbps"').replace("count = 2", "count = 0").replace('name = "pair"', "")
    problems = refused(text)
    assert [problem.split(":")[0] for problem in problems] == ["name", "nodes[0].count", "topology.wire.rate"]
    assert problems[0] == "name: missing; this key must be given"
    assert problems[1].endswith('0 is no count; give a whole number above zero, or "any" (as many as a run needs)')
    assert "'25 Gbps' has the unknown unit 'Gbps'. Nearest: 'GB/s'" in problems[2]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"25 Gbit/s"', '"0 Gbit/s"', "topology.wire.rate: '0 Gbit/s' means an unreachable peer, zero bandwidth; give"),
        ('"25 Gbit/s"', '"-1 Gbit/s"', "topology.wire.rate: '-1 Gbit/s' is negative; a rate is zero or more."),
        ('"16 GiB"', '"0 B"', "nodes[0].device.memory: '0 B' means room for nothing"),
        (
            '"star"',
            '"starr"',
            "topology.kind: 'starr' is no topology (did you mean 'star'?); give one of star, two_level",
        ),
        ('kind = "star"', "", "topology.kind: missing; give one of star, two_level, matrix"),
        ("fp32 =", "fp23 =", "nodes[0].device.flops.fp23: 'fp23' is not known here; give one of 'fp64', 'fp32',"),
        ('{ fp32 = "15.7 TFLOP/s" }', "{}", "nodes[0].device.flops: is empty; give at least one"),
        ('"pair"', '"my pair"', "name: 'my pair' is no name; use letters, digits"),
        ("count = 2", "count = 2\ndevices_per_node = 0", "nodes[0].devices_per_node: input should be greater than 0"),
        ("count = 2", "count = 2\ndevices_per_node = 4", "topology.inner: missing; nodes[0] has 4 devices per node"),
        ('"50 us"', '"50 us", header = "40 B"', "topology.wire: `header` and `framing` count only with an `mtu`"),
        ('"50 us"', '"50 us", mtu = "52 B"', "topology.wire: a header of 52 B leaves no payload in an mtu of 52 B"),
        ('"star"', '"two_level"\noversubscription = 2.0', "topology: `oversubscription` and `core_latency` need"),
        ("count = 2", 'count = 2\nname = "all"', "nodes[0].name: 'all' is taken"),
    ],
)
def test_what_is_wrong_with_a_value(old, new, problem):
    assert only(GOOD.replace(old, new, 1)).startswith(problem)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('[["-", "1 Gbit/s"],', '[["-", "-"],', "topology: rate[0][1] is an unreachable peer, zero bandwidth"),
        ('[["-", "1 Gbit/s"],', '[["1 bit/s", "1 Gbit/s"],', "topology: rate[0][0] is the way of a node to itself"),
        ('["4 ms", "-"]', '["4 ms"]', "topology: `latency` must be square and as large as `rate` (2)"),
        ("count = 2", "count = 3", "topology.rate: has 2 rows, but there are 3 nodes; a matrix has one row per node"),
        ("count = 2", 'count = "any"', 'topology.rate: has 2 rows, but there are any number of nodes (count = "any")'),
    ],
)
def test_what_is_wrong_with_a_matrix(old, new, problem):
    assert only(MATRIX.replace(old, new, 1)).startswith(problem)


def test_empty_and_misplaced_groups():
    assert only("nodes = []\n" + GOOD.replace(GOOD[GOOD.index("[[nodes") : GOOD.index("[topology")], "")) == (
        "nodes: is empty; give at least one"
    )
    group = GOOD[GOOD.index("[[nodes") : GOOD.index("[topology")]
    twice = GOOD.replace(group, group + group.replace("count", 'name = "node-1"\ncount'))
    assert only(twice).startswith("nodes[1].name: 'node-1' reads like a node of another group")
    any_first = GOOD.replace(group, group.replace("2", '"any"', 1) + group.replace("count", 'name = "b"\ncount'))
    assert only(any_first) == 'nodes[0].count: only the last group may have "any" number of nodes; put it last'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            'nodes]]\nnode = "nod-1"',
            "overrides.nodes[0].node: no node of cluster 'pair' is called 'nod-1'; did you mean",
        ),
        ("nodes]]\nnode = 2", "overrides.nodes[0].node: no node of cluster 'pair' is called '2'"),
        ("nodes]]\nnode = -1", "overrides.nodes[0].node: -1 is no node; give an index from 0, a name like"),
        ("nodes]]\nnode = 1\ndevice = 1", "overrides.nodes[0].device: there is no device 1; the nodes of group 'node'"),
        ("nodes]]\nnode = 1\nspeed = 0", "overrides.nodes[0].speed: input should be greater than 0; given: 0"),
        (
            "pairs]]\npair = [0, 1]",
            "overrides.pairs: only a matrix has a wire per pair of nodes; use `overrides.wires`",
        ),
        ('wires]]\nnode = 0\nrate = "0 B/s"', "overrides.wires[0].rate: '0 B/s' means an unreachable peer"),
        (
            "wires]]\nnode = 0\ndirection = 'left'",
            "overrides.wires[0].direction: 'left' is not known here; give one of",
        ),
        ("nodes]]\nnode = 0\ndevice = 0", "overrides.nodes[0]: changes nothing; give at least one of speed, jitter"),
        ("wires]]\nnode = 0\ndirection = 'up'", "overrides.wires[0]: changes nothing; give at least one of rate"),
    ],
)
def test_what_is_wrong_with_an_override(text, problem):
    assert only(f"{GOOD}[[overrides.{text}").startswith(problem)


def test_what_is_wrong_with_a_pair():
    assert only(MATRIX + "[[overrides.pairs]]\npair = [0, 'node-0']").startswith(
        "overrides.pairs[0].pair: [0, 'node-0'] must be two different single nodes"
    )
    assert "must be two different single nodes" in only(MATRIX + "[[overrides.pairs]]\npair = [0, 'node']")
    assert only(MATRIX + "[[overrides.wires]]\nnode = 0").startswith("overrides.wires: a matrix has no wire per node")


POSITIVE = st.floats(min_value=1e-12, max_value=1e18)
TIMES = st.floats(min_value=0, max_value=1e9)
WIRES = st.one_of(
    st.fixed_dictionaries({"rate": POSITIVE, "latency": TIMES}),
    st.fixed_dictionaries({"rate": POSITIVE, "latency": TIMES, "mtu": st.integers(53, 9000)}),
)
DEVICES = st.fixed_dictionaries(
    {
        "name": st.text(min_size=1),
        "source": st.text(min_size=1),
        "flops": st.dictionaries(st.sampled_from(["fp32", "bf16", "int8"]), POSITIVE, min_size=1),
        "memory": st.integers(1, 2**60),
        "memory_rate": POSITIVE,
        "launch_overhead": TIMES,
        "power": st.none() | POSITIVE,
    }
)
NODE = st.sampled_from(["all", "node", "node-1", 0])
NODE_OVERRIDES = st.fixed_dictionaries(
    {"node": NODE, "speed": POSITIVE, "straggler": st.none() | st.just({"probability": 0.1, "factor": 3})}
)
WIRE_OVERRIDES = st.fixed_dictionaries({"node": NODE, "rate": POSITIVE, "direction": st.just("up")})


@st.composite
def clusters(draw):
    count, per_node = draw(st.sampled_from([2, 3, "any"])), draw(st.sampled_from([1, 8]))
    kinds = [{"kind": "star"}, {"kind": "two_level", "nodes_per_switch": 2, "oversubscription": 1.5}]
    topology = draw(st.sampled_from(kinds)) | {"wire": draw(WIRES), "inner": draw(WIRES)}
    wires = draw(st.lists(WIRE_OVERRIDES, max_size=2))
    if count != "any" and draw(st.booleans()):
        rows = [[None if i == j else draw(POSITIVE) for j in range(count)] for i in range(count)]
        topology, wires = {"kind": "matrix", "rate": rows, "latency": rows, "inner": draw(WIRES)}, []
    nodes = [{"name": "node", "count": count, "device": draw(DEVICES), "devices_per_node": per_node}]
    nodes[0] |= {"power": draw(st.none() | POSITIVE), "price": draw(st.none() | POSITIVE)}
    overrides = {"nodes": draw(st.lists(NODE_OVERRIDES, max_size=2)), "wires": wires}
    return Cluster.model_validate(
        {"name": "c", "source": draw(st.text(min_size=1)), "nodes": nodes, "topology": topology, "overrides": overrides}
    )


@settings(max_examples=50)
@given(clusters())
def test_dumped_clusters_load_back_equal(cluster):
    assert parse_cluster(dump_cluster(cluster)) == cluster
