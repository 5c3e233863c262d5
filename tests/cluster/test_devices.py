"""Devices by name: figures that follow from each other, devices in cluster files, and what a wrong one says."""

import pytest

from geartrain.cluster import list_devices, load_cluster, load_device, parse_cluster
from geartrain.errors import ClusterError, UnknownName

CLUSTER = """
name = "pair"
source = "chosen"
[[nodes]]
count = 2
device = DEVICE
[topology]
kind = "star"
wire = { rate = "25 Gbit/s", latency = "50 us" }
"""
# cores, boost clock in GHz, from the specification tables of the chips: fp32 = cores * clock * 2.
CHIPS = {
    "p100-sxm2": (3584, 1.480),
    "gtx-1080ti": (3584, 1.582),
    "v100-sxm2-16gb": (5120, 1.530),
    "v100-sxm2-32gb": (5120, 1.530),
    "rtx-2080ti": (4352, 1.545),
    "t4": (2560, 1.590),
    "a100-sxm4-40gb": (6912, 1.410),
    "a100-sxm4-80gb": (6912, 1.410),
    "h100-sxm5": (16_896, 1.980),
    "h200-sxm5": (16_896, 1.980),
}


def test_the_devices_there_are():
    assert {device.name for device in list_devices()} == set(CHIPS)
    assert all(device.summary and device.source and "\n" not in device.source for device in list_devices())


@pytest.mark.parametrize("name", CHIPS)
def test_rates_are_those_of_cores_and_clock(name):
    cores, clock = CHIPS[name]
    device = load_device(name)
    assert device.name.lower() == name
    assert device.flops_of("fp32") == pytest.approx(cores * clock * 2e9, rel=0.01)
    assert device.power is not None and device.idle_power is None


def test_tensor_cores():
    """Multiply-adds of a tensor core in a cycle, times cores and clock."""
    assert load_device("v100-sxm2-16gb").flops_of("fp16") == pytest.approx(640 * 64 * 2 * 1.53e9, rel=0.01)
    assert load_device("a100-sxm4-80gb").flops_of("bf16") == pytest.approx(432 * 256 * 2 * 1.41e9, rel=0.01)
    assert load_device("h100-sxm5").flops_of("bf16") == pytest.approx(528 * 512 * 2 * 1.83e9, rel=0.01)


@pytest.mark.parametrize(
    ("cluster", "watts"), [("dgx-v100", 3500), ("dgx-2", 10_000), ("dgx-a100", 6500), ("dgx-h100", 10_200)]
)
def test_a_whole_machine_draws_what_its_data_sheet_says(cluster, watts):
    group = load_cluster(cluster).nodes[0]
    assert group.power + group.devices_per_node * group.device.power == watts


def test_a_cluster_file_names_a_device():
    cluster = parse_cluster(CLUSTER.replace("DEVICE", '"t4"'))
    assert cluster.nodes[0].device == load_device("t4")


def test_a_cluster_file_names_a_file_of_a_device(tmp_path):
    file = tmp_path / "gpu.toml"
    content = 'name = "g"\nmemory = "1 GiB"\nmemory_rate = "1 GB/s"\nsource = "-"\nflops = { fp32 = "1 TFLOP/s" }\n'
    file.write_text(content + 'power = "9 W"\nidle_power = "2 W"\n', encoding="utf-8")
    device = parse_cluster(CLUSTER.replace("DEVICE", f"'{file}'")).nodes[0].device
    assert (device.flops_of("fp32"), device.power, device.idle_power) == (1e12, 9, 2)
    file.write_text(content.replace("memory_rate", "memry_rate"), encoding="utf-8")
    with pytest.raises(ClusterError) as caught:
        load_device(file)
    assert str(caught.value).split("\n")[1:] == [
        "  memory_rate: missing; this key must be given",
        "  memry_rate: unknown key (did you mean 'memory_rate'?); "
        "known here: flops, idle_power, launch_overhead, memory, memory_rate, name, power, source",
    ]
    with pytest.raises(ClusterError, match=r"nodes\[0\].device: .*gpu.toml describes no device"):
        parse_cluster(CLUSTER.replace("DEVICE", f"'{file}'"))


def test_unknown_devices_name_the_nearest():
    with pytest.raises(UnknownName, match="no device is called 'h100'; did you mean 'h100-sxm5'"):
        load_device("h100")
    with pytest.raises(ClusterError, match=r"nodes\[0\].device: no device is called 'h100'; did you mean 'h100-sxm5'"):
        parse_cluster(CLUSTER.replace("DEVICE", '"h100"'))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('power = "300"', "nodes[0].power: '300' is a bare number: which unit?"),
        ('price = "3 EUR/h"', "nodes[0].price: '3 EUR/h' has the unknown unit 'EUR/h'."),
        ("price = 3", "nodes[0].price: 3 is a bare number: which unit?"),
    ],
)
def test_watts_and_prices_have_units(line, problem):
    with pytest.raises(ClusterError) as caught:
        parse_cluster(CLUSTER.replace("DEVICE", f'"t4"\n{line}'))
    assert problem in str(caught.value)


def test_a_price_per_hour():
    cluster = parse_cluster(CLUSTER.replace("DEVICE", '"t4"\nprice = "36 USD/h"\npower = "0.2 kW"'))
    assert (cluster.nodes[0].price, cluster.nodes[0].power) == (0.01, 200)
