"""The simulated rank's context: groups, services, lanes, queues and deadlines; times written down by hand."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import ServicePlace
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import DeadlockError
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context

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
