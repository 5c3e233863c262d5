"""Aggregation by a switch as state machines: exact sums over networks that lose, double and reorder packets."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.collectives.aggregation.numbers import (
    LARGEST,
    LEAST,
    NOT_FINITE,
    NOTHING,
    BlockFloatingPoint,
    FixedFactor,
    Integers,
)
from geartrain.collectives.aggregation.packets import sequence_slots, sequences
from geartrain.collectives.aggregation.stream import WorkerStream, extra_packets
from geartrain.collectives.aggregation.switch import SwitchState
from geartrain.collectives.aggregation.timer import RetransmissionTimer
from geartrain.errors import RunError
from tests.collectives.aggregated import Lossy, aggregate

SHAPES = st.tuples(
    st.integers(1, 4),  # workers
    st.integers(1, 25),  # numbers
    st.integers(1, 4),  # in a packet
    st.integers(1, 5),  # slots
)
NETWORKS = st.builds(
    Lossy, st.integers(0, 2**32), loss=st.floats(0, 0.25), copies=st.floats(0, 0.3), late=st.integers(1, 60)
)


def tensors(workers, numel, seed=0, dtype=np.int32):
    random = np.random.default_rng(seed)
    if dtype == np.int32:
        return [random.integers(-(2**20), 2**20, numel).astype(dtype) for _ in range(workers)]
    return [(random.standard_normal(numel) * 2.0 ** random.integers(-20, 20)).astype(dtype) for _ in range(workers)]


@settings(max_examples=60, deadline=None)
@given(SHAPES, NETWORKS)
def test_integers_are_summed_exactly_whatever_gets_lost_doubled_or_late(shape, network):
    workers, numel, width, slots = shape
    given_ = tensors(workers, numel)
    results, *_ = aggregate(given_, Integers(), network=network, slots=slots, width=width, rounds=3)
    for rounds in results:
        assert all((found == sum(given_)).all() for found in rounds)


@settings(max_examples=40, deadline=None)
@given(SHAPES, NETWORKS, st.integers(0, 1000))
def test_numbers_are_summed_within_the_bound_and_alike_on_all_workers(shape, network, seed):
    workers, numel, width, slots = shape
    given_ = tensors(workers, numel, seed, np.float32)
    numbers = BlockFloatingPoint(workers)
    results, *_ = aggregate(given_, numbers, network=network, slots=slots, width=width)
    exact = sum(x.astype(np.float64) for x in given_)
    found = results[0][0]
    assert all((rounds[0] == found).all() for rounds in results)
    for begin in range(0, numel, width):
        part = slice(begin, begin + width)
        own = [numbers.exponents(x[None, part]) for x in given_]
        factor = float(numbers.factors(np.max(own, axis=0))[0])
        # And the sum is rounded to a float32.
        bound = workers / (2 * factor) + np.abs(exact[part]) * 2.0**-24
        assert (np.abs(found[part] - exact[part]) <= bound).all()


def test_packets_without_loss_are_the_chunks_and_the_extra_batch():
    for workers, numel, width, slots in ((1, 7, 3, 2), (3, 40, 4, 3), (2, 5, 8, 4), (4, 12, 3, 8)):
        chunks = -(-numel // width)
        for numbers, ahead in ((BlockFloatingPoint(workers), True), (Integers(), False)):
            dtype = np.float32 if ahead else np.int32
            given_ = tensors(workers, numel, dtype=dtype)
            _, sent, packets = aggregate(given_, numbers, network=Lossy(0), slots=slots, width=width)
            assert packets == [chunks + extra_packets(chunks, slots, ahead=ahead)] * workers
            assert extra_packets(chunks, slots, ahead=ahead) == (min(slots, chunks) if ahead else 0)
            assert sent == 2 * sum(packets)  # as many results as packets


@settings(max_examples=30, deadline=None)
@given(SHAPES, NETWORKS)
def test_no_slot_is_a_phase_ahead_of_anybody_by_more_than_one(shape, network):
    workers, numel, width, slots = shape

    def look(streams, switch):
        newest = switch._newest  # of each worker and slot
        used = newest >= 0
        phase = np.where(used, newest // slots, -1)
        for slot in range(slots):
            assert phase[:, slot].max() - phase[:, slot].min() <= 1

    aggregate(tensors(workers, numel), Integers(), network=network, slots=slots, width=width, rounds=2, look=look)


class OnePool(SwitchState):
    def _place(self, sequence):
        slot, version = sequence_slots(sequence, self._slots)
        return slot, np.zeros_like(version)

    def _mark(self, worker, version, slot):  # a bit that nothing clears would stop all: a new phase does
        self._seen[version, slot, worker] = True

    def _take(self, worker, rows, replies):
        newer = sequences(rows) > self._newest[worker, sequences(rows) % self._slots]
        self._seen[0, (sequences(rows) % self._slots)[newer], worker] = False
        super()._take(worker, rows, replies)


class BitsStay(SwitchState):
    def _mark(self, worker, version, slot):
        self._seen[version, slot, worker] = True


class TakesLateCopies(SwitchState):
    def _in_time(self, worker, slot, sequence):
        return np.ones(len(sequence), np.bool_)


def goes_wrong(kind, **network):
    """Whether one of some schedules ends with wrong sums, with more under way than there are slots, or not at all."""
    for seed in range(20):
        given_ = tensors(3, 24)
        switch = kind(3, 2, 2)
        try:
            results, *_ = aggregate(
                given_, Integers(), network=Lossy(seed, **network), slots=2, width=2, switch=switch, patience=2000
            )
        except (TimeoutError, AssertionError):
            return True
        if not all((rounds[0] == sum(given_)).all() for rounds in results):
            return True
    return False


@pytest.mark.parametrize("kind", [OnePool, BitsStay])
def test_without_the_other_pool_or_the_clearing_of_bits_sums_are_wrong(kind):
    assert goes_wrong(kind, loss=0.1)
    assert not goes_wrong(SwitchState, loss=0.1)


def test_bits_alone_do_not_survive_copies_that_come_very_late():
    """Why the switch remembers each worker's newest packet, which the paper's does not."""
    assert goes_wrong(TakesLateCopies, loss=0.1, copies=0.5, late=200)
    assert not goes_wrong(SwitchState, loss=0.1, copies=0.5, late=200)
    assert not goes_wrong(TakesLateCopies, loss=0.1)


# Numbers


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 256), st.integers(-60, 60))
def test_nothing_overflows_when_all_send_the_largest_numbers(workers, exponent):
    largest = np.float32(math.ldexp(1 - 2.0**-24, exponent))
    chunk = np.array([[largest, -largest]], np.float32)
    numbers = BlockFloatingPoint(workers)
    agreed = numbers.exponents(chunk)
    assert agreed[0] == exponent  # 2^e > max|x| >= 2^(e - 1)
    total = numbers.quantise(chunk, agreed).astype(np.int64) * workers
    assert np.abs(total).max() <= LARGEST
    assert float(numbers.factors(agreed)[0]) > (LARGEST / workers) / 2.0**exponent / 2, "at most a bit is given away"


@pytest.mark.parametrize("factor", [1000.3, 2.0**20])
def test_one_factor_for_all_overflows_nowhere_and_is_within_the_bound(factor):
    for workers in (1, 2, 3, 7):
        numbers, most = FixedFactor(workers, factor), (2**31 - workers) / (workers * factor)
        draws = np.random.default_rng(workers).uniform(-most, most, (workers, 500))
        draws[:, :2] = np.nextafter(np.float32(most), np.float32(0)) * np.array([1, -1])
        chunks = draws.astype(np.float32)
        assert (numbers.exponents(chunks) == NOTHING).all()
        sums = sum(numbers.quantise(one[None], numbers.exponents(one[None])).astype(np.int64) for one in chunks)
        assert np.abs(sums).max() <= LARGEST
        exact = chunks.astype(np.float64).sum(0)
        found = numbers.restore(sums.astype(np.int32), numbers.exponents(chunks[:1]))
        # And the sum is rounded to a float32.
        assert (np.abs(found - exact) <= workers / (2 * factor) + np.abs(exact) * 2.0**-23).all()


def test_a_chunk_of_zeros_and_denormals_has_a_finite_factor():
    numbers = BlockFloatingPoint(2)
    chunks = np.array([[0, 0], [1e-45, 0], [-1e-30, 1e-33]], np.float32)
    agreed = numbers.exponents(chunks)
    assert agreed.tolist()[:2] == [LEAST, LEAST]
    with np.errstate(all="raise", under="ignore"):
        restored = numbers.restore(numbers.quantise(chunks, agreed), agreed)
    assert np.isfinite(restored).all() and (restored[0] == 0).all()
    assert restored[2, 0] == pytest.approx(-1e-30)
    small = [np.zeros(2, np.float32), np.full(2, 1e-3, np.float32)]
    results, *_ = aggregate(small, numbers, network=Lossy(0), slots=2, width=2)
    assert results[0][0] == pytest.approx(1e-3, rel=1e-7), "zeros of one worker cost the others no bits"


def test_one_huge_number_takes_the_bits_of_its_chunk_and_of_no_other():
    numbers = BlockFloatingPoint(4)
    chunks = np.array([[1e20, 1.0], [1.0, 2.0]], np.float32)
    agreed = numbers.exponents(chunks)
    restored = numbers.restore(numbers.quantise(chunks, agreed), agreed)
    assert restored[0, 1] == 0 and restored[1].tolist() == [1, 2]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make", [BlockFloatingPoint, lambda n: FixedFactor(n, 1024.0)])
def test_what_is_not_finite_is_told_to_all_and_spoils_its_chunk_only(bad, make):
    given_ = tensors(2, 9, dtype=np.float32)
    given_ = [x / np.abs(x).max() for x in given_]
    given_[1][4] = bad
    results, *_ = aggregate(given_, make(2), network=Lossy(1, loss=0.1), slots=2, width=3)
    for (found,) in results:
        assert np.isnan(found[3:6]).all() and np.isfinite(found[:3]).all() and np.isfinite(found[6:]).all()
    assert make(2).exponents(given_[1][None, 3:6]).tolist() == [NOT_FINITE]


def test_a_factor_that_is_too_large_is_refused_on_all_workers():
    given_ = [np.full(2, 1.0, np.float32), np.full(2, 3e6, np.float32)]
    with pytest.raises(RunError, match="above 1\\.05e\\+06, which the factor 1024 cannot carry"):
        aggregate(given_, FixedFactor(2, 1024.0), network=Lossy(0), slots=2, width=2)


# The window and its timer


def test_a_result_that_comes_again_changes_nothing():
    switch, timer = SwitchState(1, 2, 2), RetransmissionTimer(1.0, 1.0)
    stream = WorkerStream(0, np.arange(12, dtype=np.int32).reshape(6, 2), Integers(), 2, 0, timer)
    (rows,) = stream.start(0.0)
    (results,) = switch.on_packets(rows).to_all
    assert len(stream.on_packets(results, 0.0)[0]) == 2
    assert stream.on_packets(results, 0.0) == []
    assert stream.outstanding == 2


def test_the_timer_doubles_in_vain_and_believes_only_what_was_sent_once():
    timer = RetransmissionTimer(1.0, 10.0)
    stream = WorkerStream(0, np.zeros((4, 1), np.int32), Integers(), 2, 0, timer)
    switch = SwitchState(1, 2, 1)
    (rows,) = stream.start(0.0)
    assert stream.on_timeout(0.5) == [] and stream.deadline == 1.0
    assert len(stream.on_timeout(1.0)[0]) == 2
    assert (timer.timeout, stream.deadline) == (2.0, 3.0)
    stream.on_timeout(3.0)
    assert timer.timeout == 4.0
    (results,) = switch.on_packets(rows).to_all
    (rows,) = stream.on_packets(results, 3.5)
    assert timer.timeout == 4.0, "sent twice: which one was answered cannot be told"
    stream.on_packets(switch.on_packets(rows).to_all[0], 4.0)
    assert timer.timeout == pytest.approx(0.5 + 4 * 0.25)
    for _ in range(9):
        timer.expired()
    assert timer.timeout == 10.0


def test_the_switch_says_who_is_missing():
    switch = SwitchState(3, 2, 1)
    for worker in (0, 2):
        stream = WorkerStream(worker, np.zeros((2, 1), np.int32), Integers(), 2, 0, RetransmissionTimer(1.0, 1.0))
        assert switch.missing() == ([] if worker == 0 else [1, 2])
        switch.on_packets(stream.start(0.0)[0])
    assert switch.missing() == [1]
