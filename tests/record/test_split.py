import time

import numpy as np

from geartrain.record.log import Blocked
from geartrain.record.split import split
from tests.record.logs import KEY, late_rank, op, rank, record


def shares(one):
    return one.compute, one.wait, one.exposed_communication, one.hidden_communication, one.wire


def test_blocked_time_is_cut_where_the_last_rank_enters():
    fast, slow = split(late_rank()).ranks
    assert shares(fast.total) == (4.0, 3.0, 3.0, 0.0, 3.0)
    assert shares(slow.total) == (7.0, 0.0, 3.0, 0.0, 3.0)
    assert [(s.kind, s.begin, s.end, s.on) for s in fast.still] == [
        ("wait", 2.0, 5.0, 1),
        ("communication", 5.0, 8.0, 1),
    ]
    assert fast.steps[0].shares == fast.total


def test_wait_matrix_names_who_was_waited_for():
    assert split(late_rank()).wait_matrix().tolist() == [[0.0, 3.0, 0.0], [0.0, 0.0, 0.0]]


def test_a_transfer_beside_compute_is_hidden():
    log = rank(0, ops=[op(KEY, 1.0, 6.0)], blocked=[Blocked(5.0, 6.0, KEY, "")], steps=[(0.0, 4.0), (4.0, 8.0)])
    other = rank(1, ops=[op(KEY, 1.0, 6.0)])
    one = split(record(log, other)).ranks[0]
    assert shares(one.total) == (9.0, 0.0, 1.0, 4.0, 5.0)
    assert [shares(step.shares) for step in one.steps] == [(4.0, 0.0, 0.0, 3.0, 3.0), (3.0, 0.0, 1.0, 1.0, 2.0)]


def test_overlapping_transfers_count_once_in_wire():
    ops = [op(("g", n), 1.0 + n, 5.0 + n, peers=(0,)) for n in range(3)]
    assert split(record(rank(0, ops=ops))).ranks[0].total.wire == 6.0


def test_blocked_without_operation_is_waiting_for_nobody():
    log = rank(0, blocked=[Blocked(1.0, 3.0, None, "", "queue")])
    one = split(record(log)).ranks[0]
    assert (one.total.wait, one.still[0].what, one.still[0].on) == (2.0, "queue", None)
    assert split(record(log)).wait_matrix().tolist() == [[0.0, 2.0]]


def ring_in_a_lane():
    """Main computes until 4 and then waits for a lane, which sends from 1 to 3, and from 6, when the other comes."""
    ops = [op(("g", 0), 1.0, 3.0, lane="ring"), op(("g", 1), 3.0, 8.0, lane="ring")]
    mine = rank(0, ops=ops, blocked=[Blocked(4.0, 9.0, None, "", "lane ring")])
    return record(mine, rank(1, ops=[op(("g", 0), 1.0, 3.0), op(("g", 1), 6.0, 8.0)]))


def test_waiting_for_a_lane_is_what_the_lane_stands_still_for():
    one = split(ring_in_a_lane()).ranks[0]
    assert [(s.kind, s.begin, s.end, s.what, s.on) for s in one.still] == [
        ("wait", 4.0, 6.0, "all_reduce", 1),
        ("communication", 6.0, 8.0, "all_reduce", 1),
        ("wait", 8.0, 9.0, "lane ring", None),
    ]
    assert shares(one.total) == (5.0, 3.0, 2.0, 2.0, 4.0)


def test_a_sleep_is_waiting_whatever_lanes_do():
    run = ring_in_a_lane()
    run.logs[0].blocked[0].what = "sleep"
    assert [(s.kind, s.begin, s.end) for s in split(run).ranks[0].still] == [("wait", 4.0, 9.0)]


def test_other_lanes_may_stand_still():
    log = rank(0, ops=[op(KEY, 0.0, 9.0, lane="side", nbytes=7)], blocked=[Blocked(0.0, 9.0, KEY, "side")])
    total = split(record(log)).ranks[0].total
    assert (total.wait, total.hidden_communication, total.bytes_sent) == (0.0, 9.0, 7)


def test_a_rank_that_never_came_is_waited_for():
    log = rank(0, ops=[op(KEY, 2.0, -1.0, peers=(0, 1, 2))], blocked=[Blocked(2.0, 10.0, KEY, "")])
    other = rank(2, ops=[op(KEY, 1.0, -1.0, peers=(0, 1, 2))])
    result = split(record(log, rank(1), other))
    assert result.waits() == {(0, 1): 8.0}
    assert result.ranks[0].total.wire == 0.0


def test_who_comes_after_the_end_did_not_hold_this_rank_up():
    peers = (0, 1, 2)
    root = rank(0, ops=[op(KEY, 3.0, 4.0, peers=peers)])
    early = rank(1, ops=[op(KEY, 1.0, 4.0, peers=peers)], blocked=[Blocked(1.0, 4.0, KEY, "")])
    tardy = rank(2, ops=[op(KEY, 9.0, 9.5, peers=peers)])
    total = split(record(root, early, tardy)).ranks[1].total
    assert (total.wait, total.exposed_communication) == (2.0, 1.0)


def test_own_late_entry_is_no_waiting():
    log = rank(0, ops=[op(KEY, 2.0, 4.0)], blocked=[Blocked(1.5, 4.0, KEY, "")])
    total = split(record(log, rank(1, ops=[op(KEY, 1.0, 4.0)]))).ranks[0].total
    assert (total.wait, total.exposed_communication) == (0.0, 2.5)


def test_bytes_belong_to_the_step_of_their_posting():
    ops = [
        op(("g", n), posted, posted + 0.1, nbytes=10**n, messages=1) for n, posted in enumerate((0.5, 1.0, 2.5, 3.0))
    ]
    log = rank(0, ops=ops, steps=[(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)])
    one = split(record(log)).ranks[0]
    assert [(s.shares.bytes_sent, s.shares.messages) for s in one.steps] == [(1, 1), (10, 1), (100, 1)]
    assert one.total.bytes_sent == 1111


def test_an_unfinished_step_is_left_out():
    log = rank(0, steps=[(0.0, 1.0)])
    log.steps[0].end = -1.0
    assert split(record(log)).ranks[0].steps == ()


def test_a_rank_without_an_end_ends_with_its_last_word():
    log = rank(0, ops=[op(KEY, 2.0, -1.0, peers=(0,))], steps=[(0.0, 3.0)], end=0.0)
    assert split(record(log)).ranks[0].total.end == 3.0


def test_parts_add_up_to_the_time():
    for one in split(late_rank()).ranks:
        total = one.total
        assert total.compute + total.wait + total.exposed_communication == total.time


def test_a_thousand_ranks_take_less_than_a_second():
    num_ranks = 1024
    rng = np.random.default_rng(0)
    peers = tuple(range(num_ranks))
    logs = []
    for number in range(num_ranks):
        entered = np.arange(20) + rng.random(20) / 2
        ops = [op(("g", n), float(t), n + 0.9, peers=peers) for n, t in enumerate(entered)]
        blocked = [Blocked(one.posted, one.done, one.key, "") for one in ops]
        logs.append(rank(number, ops=ops, blocked=blocked, steps=[(float(n), n + 1.0) for n in range(20)], end=20.0))
    begin = time.process_time()
    result = split(record(*logs))
    seconds = time.process_time() - begin
    assert len(result.ranks) == num_ranks
    assert seconds < 1.0  # of this process's own time, whatever else the machine does


def buffered_push(*, straggler: float):
    """Worker 0 pushes from 1 (taken by the kernel at once) and waits for a pull; the server has the push at 5, pulls
    until 8. Worker 1 pushes too, from `straggler`, and the server waits for it last.
    """
    push, late, pull = ("g", "p", 0, 2, 1, 0), ("g", "p", 1, 2, 1, 0), ("g", "p", 2, 0, 2, 0)
    worker = rank(
        0,
        ops=[op(push, 1.0, 1.1, kind="send", peers=(0, 2)), op(pull, 1.1, 8.0, kind="recv", peers=(2, 0))],
        blocked=[Blocked(1.0, 1.1, push, ""), Blocked(1.1, 8.0, pull, "")],
    )
    other = rank(1, ops=[op(late, straggler, straggler, kind="send", peers=(1, 2))])
    server = rank(
        2,
        ops=[
            op(push, 0.0, 5.0, kind="recv", lane="serve", peers=(0, 2)),
            op(late, 0.0, max(5.0, straggler + 0.5), kind="recv", lane="serve", peers=(1, 2)),
            op(pull, 6.0 if straggler < 5 else straggler + 1, 8.0, kind="send", lane="serve", peers=(2, 0)),
        ],
        blocked=[Blocked(0.0, 5.0, push, "serve"), Blocked(5.0, max(5.0, straggler + 0.5), late, "serve")],
        role="server",
    )
    return record(worker, other, server)


def test_bytes_that_the_kernel_took_are_under_way_until_they_are_received():
    one = split(buffered_push(straggler=1.0)).ranks[0]
    assert [(s.kind, s.begin, s.end, s.what, s.on) for s in one.still] == [
        ("communication", 1.0, 1.1, "send", 2),
        ("communication", 1.1, 5.0, "send", 2),
        ("wait", 5.0, 6.0, "recv", 2),
        ("communication", 6.0, 8.0, "recv", 2),
    ]
    assert shares(one.total) == (3.0, 1.0, 6.0, 0.0, 6.0)


def test_waiting_for_a_receiver_that_waits_for_another_rank_stays_waiting():
    one = split(buffered_push(straggler=6.0)).ranks[0]
    assert [(s.kind, s.begin, s.end, s.on) for s in one.still][2:] == [
        ("wait", 5.0, 7.0, 2),
        ("communication", 7.0, 8.0, 2),
    ]
