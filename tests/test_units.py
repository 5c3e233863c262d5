"""Units: what is read, what is refused and with which words, and that exact text reads back."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geartrain import units
from geartrain.errors import UnitError

FINITE = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("25 Gbit/s", 3.125e9),
        ("25Gbit/s", 3.125e9),
        ("25 Gb/s", 3.125e9),
        ("25 GB/s", 25e9),
        ("1 GiB/s", 2**30),
        ("1 Gibit/s", 2**27),
        ("100 Mbit/s", 12.5e6),
        ("8 kbit/s", 1000),
        ("8 bit/s", 1),
        (" 2.5e-1 kB/s ", 250),
    ],
)
def test_rates(text, value):
    assert units.parse_rate(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("50 us", 50e-6),
        ("50 µs", 50e-6),
        ("50 μs", 50e-6),
        ("3 ms", 3e-3),
        ("2 ns", 2e-9),
        ("2 min", 120),
        ("1 h", 3600),
    ],
)
def test_times(text, value):
    assert units.parse_time(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("80 GiB", 80 * 2**30), ("80 GB", 80 * 10**9), ("1500 B", 1500), ("1.5 KiB", 1536), ("12 bit", 2), (".5 kB", 500)],
)
def test_sizes_are_whole_bytes(text, value):
    assert units.parse_size(text) == value
    assert isinstance(units.parse_size(text), int)


def test_compute():
    assert units.parse_flops("312 TFLOP/s") == 312e12
    assert units.parse_flop("6 GFLOP") == 6e9


@pytest.mark.parametrize("bare", [25, 25.0, "25", " 25 ", "1e9"])
def test_a_bare_number_is_refused(bare):
    with pytest.raises(UnitError) as caught:
        units.parse_rate(bare)
    assert str(caught.value) == (
        f'{bare!r} is a bare number: which unit? Write a rate as text with a unit, like "25 Gbit/s"; case matters.'
    )


@pytest.mark.parametrize(
    ("parse", "text", "nearest"),
    [
        (units.parse_rate, "25 gbit/s", "'Gbit/s' (1.25e+08 B/s)"),
        (units.parse_rate, "25 Gbps", "'GB/s' (1e+09 B/s), 'Gbit/s' (1.25e+08 B/s)"),
        (units.parse_rate, "25 Gbit", "'Gbit/s'"),
        (units.parse_rate, "25 KB/s", "'kB/s' (1000 B/s)"),
        (units.parse_time, "50 Ms", "'ms' (0.001 s)"),
        (units.parse_time, "50 sec", "'s' (1 s)"),
        (units.parse_size, "80 gib", "'GiB' (1.07374e+09 B)"),
        (units.parse_flops, "312 TFLOPS", "'TFLOP/s' (1e+12 FLOP/s)"),
        (units.parse_flop, "6 Gflop", "'GFLOP'"),
    ],
)
def test_an_unknown_unit_names_the_nearest(parse, text, nearest):
    with pytest.raises(UnitError) as caught:
        parse(text)
    assert f"{text!r} has the unknown unit {text.split()[1]!r}. Nearest: " in str(caught.value)
    assert nearest in str(caught.value)
    assert "as text with a unit, like" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-3 s", "is negative; a time is zero or more"),
        ("", "is no time"),
        ("s", "is no time"),
        ("fast", "is no time"),
        ("1 2 s", "is no time"),
        ("nan s", "is no time"),
        ("1e999 s", "is too large"),
        ("1e999999999 s", "unknown unit"),
        (None, "None is no time"),
        (True, "True is no time"),
    ],
)
def test_what_is_no_time(text, words):
    with pytest.raises(UnitError) as caught:
        units.parse_time(text)
    assert words in str(caught.value)
    assert 'like "50 us"' in str(caught.value)


def test_for_people():
    assert units.format_rate(3.125e9) == "25 Gbit/s"
    assert units.format_rate(900e9, "B") == "900 GB/s"
    assert units.format_time(0.000412) == "412 us"
    assert units.format_time(0.9999996) == "1 s"
    assert units.format_time(0) == "0 s"
    assert units.format_time(90) == "90 s"
    assert units.format_time(600) == "10 min"
    assert units.format_time(1e5) == "27.78 h"
    assert units.format_size(1.2e6) == "1.2 MB"
    assert units.format_size(80 * 2**30, binary=True) == "80 GiB"
    assert units.format_size(123456e15) == "123500 PB"
    assert units.format_flops(3.12e14) == "312 TFLOP/s"
    assert units.format_flop(6e9) == "6 GFLOP"


def test_exact_text_is_short():
    assert units.format_exact(3.125e9, "rate") == "25 Gbit/s"
    assert units.format_exact(5e-5, "time") == "50 us"
    assert units.format_exact(80 * 2**30, "size") == "80 GiB"
    assert units.format_exact(0.0, "time") == "0 s"


@given(FINITE)
@pytest.mark.parametrize("quantity", ["rate", "time", "flops", "flop"])
def test_exact_text_reads_back(quantity, value):
    assert units.QUANTITIES[quantity].parse(units.format_exact(value, quantity)) == value


@given(st.integers(min_value=0, max_value=2**63 - 1))
@example(2**63 - 807)  # in kB it would be rounded up, past the largest size
def test_exact_sizes_read_back(value):
    assert units.parse_size(units.format_exact(value, "size")) == value


@given(st.floats(min_value=0, max_value=1e300))
@pytest.mark.parametrize("quantity", ["rate", "time", "flops", "flop"])
def test_text_for_people_is_close(quantity, value):
    read = units.QUANTITIES[quantity].parse(units.QUANTITIES[quantity].format(value))
    # Four significant digits; a subnormal number has fewer digits itself.
    assert math.isclose(read, value, rel_tol=6e-4, abs_tol=1e-300)


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0])
def test_what_cannot_be_written(value):
    with pytest.raises(UnitError, match="must be finite and not negative"):
        units.format_exact(value, "time")


@pytest.mark.parametrize("value", [1.5, 2**63])
def test_sizes_that_cannot_be_written_exactly(value):
    with pytest.raises(UnitError, match="must be whole and below"):
        units.format_exact(value, "size")
