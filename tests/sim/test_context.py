"""The simulated rank's context: groups, services, lanes, queues and deadlines; times written down by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import ServicePlace
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import DeadlockError, RankFailed
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context
from geartrain.torch_private import default_store

CLUSTER = load_cluster("ethernet-10g")
LATENCY = 50e-6
RATE = 10e9 / 8


def simulated(main: Any, workers: int = 2, **options: Any) -> RunRecord:
    return SimulatedEngine().run(main, CLUSTER, workers=workers, **options)


def test_ranks_roles_and_groups():
    def main(ctx: Context) -> Any:
        pair = ctx.group([0, 2])
        x = torch.tensor([float(ctx.rank)])
        if pair is not None:
            dist.all_reduce(x, group=pair)
        everyone = torch.ones(1)
        dist.all_reduce(everyone, group=ctx.everyone)
        return ctx.rank, ctx.world_size, ctx.num_workers, ctx.role, pair is None, x.item(), everyone.item()

    assert simulated(main, 3).results == [
        (0, 3, 3, "worker", False, 2.0, 3.0),
        (1, 3, 3, "worker", True, 1.0, 3.0),
        (2, 3, 3, "worker", False, 2.0, 3.0),
    ]


def test_services_are_outside_the_default_world():
    def main(ctx: Context) -> Any:
        x = torch.ones(1)
        if ctx.role == "worker":
            dist.all_reduce(x)  # the default world: workers alone
            dist.send(x, group=ctx.everyone, group_dst=2)
            return x.item(), dist.get_world_size(), ctx.workers.size()
        got = [ctx.recv_any(x, ctx.everyone) for _ in range(2)]
        return sorted(got), x.item(), dist.is_initialized(), ctx.everyone.size()

    record = simulated(main, 2, services=[ServicePlace("server")])
    assert record.results == [(2.0, 2, 2), (2.0, 2, 2), ([0, 1], 2.0, False, 3)]
    assert [log.role for log in record.logs] == ["worker", "worker", "server"]


def test_a_message_takes_its_bytes_over_the_rate_and_one_latency():
    def main(ctx: Context) -> float:
        x = torch.zeros(1_000_000)
        if ctx.rank == 0:
            dist.send(x, group=ctx.workers, group_dst=1)
        else:
            dist.recv(x, group=ctx.workers, group_src=0)
        return ctx.clock.now()

    sent, received = simulated(main).results
    assert sent == pytest.approx(4e6 / RATE, rel=1e-9)
    assert received == pytest.approx(4e6 / RATE + LATENCY, rel=1e-9)


def test_queue_gives_in_order_and_a_deadline_loses_nothing():
    def main(ctx: Context) -> Any:
        queue = ctx.queue()

        def fills() -> None:
            ctx.clock.sleep(2.0)
            queue.put("first")
            queue.put("second")

        ctx.spawn(fills, "fills")
        with pytest.raises(TimeoutError):
            queue.get(deadline=1.0)
        at, ready = ctx.clock.now(), queue.ready()
        first = queue.get(deadline=5.0)
        return at, ready, first, ctx.clock.now(), queue.ready(), queue.get(), queue.ready()

    assert simulated(main, 1).results == [(1.0, False, "first", 2.0, True, "second", False)]


def test_a_receiver_can_be_waited_for_with_a_deadline():
    def main(ctx: Context) -> Any:
        group = ctx.group([0, 1])
        assert group is not None
        if ctx.rank == 1:
            for value in (1.0, 2.0):
                ctx.clock.sleep(1.0)
                dist.send(torch.tensor([value]), group=group, group_dst=0, tag=4)
            return None
        receiver = ctx.receiver(torch.zeros(1), group, source=None, tag=4)
        early = ctx.wait_any([receiver], deadline=0.5)
        with pytest.raises(TimeoutError):
            receiver.get(deadline=0.75)
        found = ctx.wait_any([receiver])
        messages = [receiver.get(), receiver.get()]
        return early, found, [(m.source, m.tensor.item()) for m in messages], round(ctx.clock.now(), 3)

    assert simulated(main).results[0] == (None, 0, [(1, 1.0), (1, 2.0)], 2.0)


def test_wait_any_takes_the_first_and_the_lowest_of_a_tie():
    def main(ctx: Context) -> Any:
        lanes = [ctx.spawn(lambda t=t: ctx.clock.sleep(t), f"lane{t}") for t in (3.0, 1.0, 1.0)]
        first = ctx.wait_any(lanes)
        at = ctx.clock.now()
        both = ctx.wait_any([lanes[2], lanes[1]])
        return first, at, both, ctx.wait_any([lanes[0]], deadline=2.0), ctx.wait_any(lanes[:1]), ctx.clock.now()

    assert simulated(main, 1).results == [(1, 1.0, 0, None, 0, 3.0)]


def test_memory_is_shared_by_the_lanes_of_a_rank_and_not_by_ranks():
    def main(ctx: Context) -> Any:
        x = ctx.shared("x", torch.zeros(2))
        ctx.spawn(lambda: ctx.shared("x", torch.ones(5)).add_(ctx.rank + 1), "adds").join()
        return x.tolist(), ctx.shared("other", torch.ones(1)).tolist()

    assert simulated(main).results == [([1.0, 1.0], [1.0]), ([2.0, 2.0], [1.0])]


def test_random_streams_belong_to_rank_and_purpose_and_seed():
    def main(ctx: Context) -> Any:
        same = ctx.rng("a") is ctx.rng("a")
        return same, *(torch.rand(1, generator=ctx.rng(purpose)).item() for purpose in ("a", "b", "a"))

    first, again, other = simulated(main, seed=1), simulated(main, seed=1), simulated(main, seed=2)
    assert first.results == again.results
    drawn = [value for record in (first, other) for result in record.results for value in result[1:]]
    assert len(set(drawn)) == len(drawn) and all(result[0] for result in first.results)


def test_lanes_communicate_on_groups_of_their_own_beside_the_main_program():
    def main(ctx: Context) -> Any:
        group = ctx.group([0, 1])
        total = torch.zeros(1)

        def averages() -> None:
            for _ in range(3):
                x = torch.tensor([float(ctx.rank + 1)])
                dist.all_reduce(x, group=group)
                total.add_(x)

        lane = ctx.spawn(averages, "averages")
        x = torch.ones(1)
        dist.all_reduce(x)
        lane.join()
        return x.item(), total.item()

    assert simulated(main).results == [(2.0, 9.0), (2.0, 9.0)]


def test_steps_spans_and_counts_reach_the_record():
    def main(ctx: Context) -> None:
        for step in range(2):
            ctx.mark_step(step, "begin")
            with ctx.trace.span("nap"):
                ctx.clock.sleep(1.0)
            ctx.trace.count("bytes saved", 5)
            ctx.mark_step(step, "end", loss=0.5 * step)

    (log,) = simulated(main, 1).logs
    assert [(mark.step, mark.begin, mark.end, mark.values) for mark in log.steps] == [
        (0, 0.0, 1.0, {"loss": 0.0}),
        (1, 1.0, 2.0, {"loss": 0.5}),
    ]
    assert [(span.name, span.begin, span.end) for span in log.spans] == [("nap", 0.0, 1.0), ("nap", 1.0, 2.0)]
    assert log.counts == {"bytes saved": 10} and log.end == 2.0


def test_a_deadlock_between_lanes_names_them_and_the_step():
    def main(ctx: Context) -> None:
        ctx.mark_step(7, "begin")
        lane = ctx.spawn(lambda: ctx.queue().get(), "collector")
        lane.join()

    with pytest.raises(DeadlockError) as caught:
        simulated(main)
    message = str(caught.value)
    assert "the end of lane 'collector'" in message
    assert "lane collector" in message and "test_context.py" in message


def test_meta_tensors_take_the_same_time_without_numbers():
    def main(ctx: Context) -> float:
        x = torch.zeros(1000, device=ctx.device)
        dist.all_reduce(x, group=ctx.workers)
        if ctx.rank == 0:
            dist.send(x, group=ctx.workers, group_dst=1)
        else:
            dist.recv(x, group=ctx.workers, group_src=0)
        return ctx.clock.now()

    assert simulated(main).results == simulated(main, meta=True).results


# --- programs that do nothing but look --------------------------------------------------------------------------------


def later(ctx: Context, action: Callable[[], object]) -> object:
    """A lane that does something at t = 1."""

    def act() -> None:
        ctx.clock.sleep(1.0)
        action()

    return ctx.spawn(act, "later")


def look_at_the_clock(ctx: Context) -> None:
    while ctx.clock.now() < 1.0:
        pass


def look_into_a_queue(ctx: Context) -> None:
    queue = ctx.queue()
    later(ctx, lambda: queue.put(None))
    while not queue.ready():
        pass


def look_for_the_end_of_a_lane(ctx: Context) -> None:
    lane: Any = later(ctx, lambda: None)
    while not lane.ready():
        pass


def sleep_for_no_time_until_a_list_is_filled(ctx: Context) -> None:
    found: list[None] = []
    later(ctx, lambda: found.append(None))
    while not found:
        ctx.clock.sleep(0.0)


def wait_without_waiting(ctx: Context) -> None:
    queue = ctx.queue()
    later(ctx, lambda: queue.put(None))
    while ctx.wait_any([queue], deadline=ctx.clock.now()) is None:
        pass


def look_whether_an_operation_succeeded(ctx: Context) -> None:
    if ctx.rank == 1:
        ctx.clock.sleep(1.0)
    work: Any = dist.all_reduce(torch.ones(1), async_op=True)
    while not work.is_success():
        pass


def look_at_the_store(ctx: Context) -> None:
    store = default_store()
    if ctx.rank == 1:
        ctx.clock.sleep(1.0)
    store.add("there", 1)
    while store.add("there", 0) < 2:
        pass


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "looks",
    [
        look_at_the_clock,
        look_into_a_queue,
        look_for_the_end_of_a_lane,
        sleep_for_no_time_until_a_list_is_filled,
        wait_without_waiting,
        look_whether_an_operation_succeeded,
        look_at_the_store,
    ],
)
def test_who_does_nothing_but_look_sees_it_happen(looks):
    def main(ctx: Context) -> float:
        looks(ctx)
        return ctx.clock.now()

    assert simulated(main).results == pytest.approx([1.0, 1.0], abs=5e-3)


@pytest.mark.timeout(20)
def test_looks_that_nobody_can_end_are_a_deadlock_even_where_all_look():
    def main(ctx: Context) -> None:
        work: Any = dist.irecv(torch.ones(1), src=1 - ctx.rank)
        while not work.is_completed():
            pass

    with pytest.raises(DeadlockError, match="nothing else can happen"):
        simulated(main)


@pytest.mark.timeout(20)
def test_a_look_that_watches_the_clock_may_end_by_itself():
    def main(ctx: Context) -> float:
        work: Any = dist.irecv(torch.ones(1), src=1 - ctx.rank)
        while not work.is_completed() and ctx.clock.now() < 60.0:
            pass
        return ctx.clock.now()

    assert simulated(main).results == pytest.approx([60.0, 60.0], rel=0.05)


@pytest.mark.timeout(20)
def test_an_exception_whose_text_cannot_be_made_ends_the_run():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    def main(ctx: Context) -> None:
        if ctx.rank == 1:
            raise Mute
        dist.barrier()

    with pytest.raises(RankFailed, match="rank 1 raised Mute"):
        simulated(main)


def test_a_worker_that_ended_is_blamed_also_where_a_servers_lane_waits_for_it():
    def main(ctx: Context) -> None:
        x = torch.zeros(1)
        if ctx.role == "server":

            def serve() -> None:
                for worker in range(ctx.num_workers):
                    dist.recv(x, group=ctx.everyone, group_src=worker)

            ctx.spawn(serve, "serve", daemon=True)
            dist.recv(torch.zeros(1), group=ctx.everyone, group_src=0, tag=1)
        elif ctx.rank == 0:
            dist.send(x, group=ctx.everyone, group_dst=2)
            dist.recv(x, group=ctx.everyone, group_src=2)

    with pytest.raises(RankFailed, match="rank 1 ended while others wait for it") as caught:
        simulated(main, services=[ServicePlace("server")])
    assert "rank 2 lane serve  waits in recv from rank 1" in str(caught.value)
    assert caught.value.rank == 1


@pytest.mark.parametrize("late", [0, 1])
def test_an_all_to_all_of_unlike_shares_takes_what_its_busiest_wire_takes_whoever_comes_first(late):
    """Rank 0 gives each rank 1,000 numbers, rank 1 gives each a million."""

    def main(ctx: Context) -> float:
        if ctx.rank == late:
            ctx.clock.sleep(1e-3)
        sizes = [1_000, 1_000_000]
        given, got = torch.ones(2 * sizes[ctx.rank]), torch.zeros(sum(sizes))
        dist.all_to_all_single(got, given, sizes, [sizes[ctx.rank]] * 2)
        return ctx.clock.now()

    record = simulated(main)
    assert record.results == pytest.approx([1e-3 + LATENCY + 4e6 / RATE] * 2)
    assert [(log.ops[0].nbytes, log.ops[0].messages) for log in record.logs] == [(4_000, 1), (4_000_000, 1)]
