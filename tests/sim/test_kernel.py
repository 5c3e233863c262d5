"""The baton: who runs when, in virtual time, the same in every run."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from geartrain.cluster.load import load_cluster
from geartrain.cost.compute import Constant, Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import GeartrainError, RankFailed
from geartrain.record.split import split
from geartrain.runtime.context import Context
from geartrain.sim.kernel import Event, Kernel, Stopped
from geartrain.sim.network import Network

CLUSTER = load_cluster("ethernet-10g")


def run(*bodies: Callable[[Kernel], Any], ranks: list[int] | None = None) -> tuple[Kernel, list[Any]]:
    """Activities on a kernel without any ranks around them."""

    def explain(error: BaseException | None, activity: Any) -> BaseException:
        return error or GeartrainError(f"stuck: {activity}")

    kernel = Kernel(Network([1.0]), explain)
    made = [
        kernel.add((ranks or list(range(len(bodies))))[at], "", lambda body=body: body(kernel))
        for at, body in enumerate(bodies)
    ]
    kernel.run()
    return kernel, [activity.result for activity in made]


def sleep(kernel: Kernel, seconds: float) -> None:
    kernel.wait(Event("sleep"), deadline=kernel.me().now + seconds)


def test_smallest_time_runs_first_and_ties_go_to_the_lower_rank():
    order: list[tuple[str, float]] = []

    def body(name: str, naps: list[float]) -> Callable[[Kernel], None]:
        def steps(kernel: Kernel) -> None:
            for nap in naps:
                sleep(kernel, nap)
                order.append((name, kernel.me().now))

        return steps

    run(body("c", [2.0, 1.0]), body("a", [1.0, 1.0]), body("b", [2.0]), ranks=[2, 0, 1])
    assert order == [("a", 1.0), ("a", 2.0), ("b", 2.0), ("c", 2.0), ("c", 3.0)]


def test_a_clock_runs_ahead_while_computing_and_waits_to_be_overtaken_before_it_looks():
    order: list[str] = []

    def far(kernel: Kernel) -> None:
        kernel.charge(5.0)
        order.append("far computed")  # no switch: nothing of the world was touched
        kernel.sync()
        order.append("far looks")

    def near(kernel: Kernel) -> None:
        kernel.charge(1.0)
        kernel.sync()
        order.append("near looks")

    kernel, _ = run(far, near)
    assert order == ["far computed", "near looks", "far looks"]
    assert kernel.now == 5.0


def test_an_event_does_not_move_a_clock_back():
    event = Event()

    def ahead(kernel: Kernel) -> float:
        kernel.charge(9.0)
        assert kernel.wait(event)
        return kernel.me().now

    def fires(kernel: Kernel) -> float:
        sleep(kernel, 3.0)
        kernel.fire(event)
        return kernel.me().now

    assert run(ahead, fires)[1] == [9.0, 3.0]


def test_kernel_time_never_decreases():
    seen: list[float] = []

    def body(nap: float) -> Callable[[Kernel], None]:
        def steps(kernel: Kernel) -> None:
            for turn in range(20):
                kernel.charge(nap * (turn % 3))
                kernel.sync()
                seen.append(kernel.now)
                sleep(kernel, nap)
                seen.append(kernel.now)

        return steps

    run(*(body(nap) for nap in (0.3, 0.7, 0.11)))
    assert seen == sorted(seen)


def test_a_deadline_ends_the_wait_and_nothing_else():
    event = Event()

    def waits(kernel: Kernel) -> Any:
        first = kernel.wait(event, deadline=2.0)
        at = kernel.me().now
        return first, at, kernel.wait(event, deadline=9.0), kernel.me().now, kernel.wait(event), kernel.me().now

    def fires(kernel: Kernel) -> None:
        sleep(kernel, 5.0)
        kernel.fire(event)

    assert run(waits, fires)[1][0] == (False, 2.0, True, 5.0, True, 5.0)


def test_a_deadline_in_the_past_looks_and_goes_on():
    event = Event()

    def waits(kernel: Kernel) -> Any:
        kernel.charge(4.0)
        return kernel.wait(event, deadline=1.0), kernel.me().now

    def fires(kernel: Kernel) -> None:
        sleep(kernel, 3.0)
        kernel.fire(event)

    assert run(waits, fires)[1][0] == (True, 4.0)


def test_timers_run_in_order_between_activities():
    order: list[Any] = []

    def body(kernel: Kernel) -> None:
        kernel.at(2.0, lambda: order.append(("second", kernel.now)))
        kernel.at(1.0, lambda: order.append(("first", kernel.now)))
        sleep(kernel, 1.5)
        order.append("between")
        sleep(kernel, 1.0)

    run(body)
    assert order == [("first", 1.0), "between", ("second", 2.0)]
    kernel = Kernel(Network([1.0]), lambda *_: GeartrainError())
    kernel.now = 3.0
    with pytest.raises(AssertionError, match="before now"):
        kernel.at(2.0, lambda: None)


def test_polling_lets_others_get_on_and_ends_soon():
    event = Event()
    looks = 0

    def polls(kernel: Kernel) -> float:
        nonlocal looks
        while not kernel.poll(event):
            looks += 1
        return kernel.me().now

    def fires(kernel: Kernel) -> None:
        sleep(kernel, 1000.0)
        kernel.fire(event)

    (found, _) = run(polls, fires)[1]
    assert 1000.0 <= found < 1000.001
    assert looks < 200


def test_a_poll_that_nothing_can_end_stops_the_run():
    with pytest.raises(GeartrainError, match="stuck"):
        run(lambda kernel: [None for _ in iter(lambda: kernel.poll(Event()), True)])


def test_an_error_stops_all_others_where_they_stand():
    ends: list[str] = []

    def stands(kernel: Kernel) -> None:
        try:
            kernel.wait(Event("nothing"))
        except Stopped:
            ends.append("stopped")
            raise

    def fails(kernel: Kernel) -> None:
        sleep(kernel, 1.0)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(stands, fails, stands)
    assert ends == ["stopped", "stopped"]
    assert not [t for t in threading.enumerate() if t.name.startswith("rank ")]


def test_a_thread_from_outside_is_refused():
    kernel = Kernel(Network([1.0]), lambda *_: GeartrainError())
    with pytest.raises(GeartrainError, match=r"ctx\.spawn"):
        kernel.sync()


# --- lanes ------------------------------------------------------------------------------------------------------------


def simulated(main: Callable[[Context], Any], workers: int = 2, **options: Any) -> Any:
    return SimulatedEngine(options.pop("compute", None)).run(main, CLUSTER, workers=workers, **options)


def test_a_lane_has_its_creators_grad_mode_and_a_random_stream_of_its_own():
    def main(ctx: Context) -> Any:
        torch.manual_seed(0)
        found: dict[str, Any] = {}

        def body(name: str) -> Callable[[], None]:
            def steps() -> None:
                ctx.clock.sleep(1.0)
                found[name] = (torch.is_grad_enabled(), torch.rand(1).item(), torch.get_default_dtype())

            return steps

        first = ctx.spawn(body("first"), "first")
        with torch.no_grad():
            second = ctx.spawn(body("second"), "second")
        own = torch.rand(1).item()
        first.join()
        second.join()
        return found["first"], found["second"], own, torch.rand(1).item()

    one, other = simulated(main).results
    assert (one[0][0], one[1][0]) == (True, False)
    assert one[2:] == other[2:]  # both ranks gave their main program the same seed, and no lane drew from it
    assert len({one[0][1], one[1][1], other[0][1], other[1][1], one[2], one[3]}) == 6


def test_an_exception_in_a_lane_fails_its_rank():
    def main(ctx: Context) -> None:
        def fails() -> None:
            ctx.clock.sleep(1.0)
            raise ValueError("in the lane")

        if ctx.rank == 1:
            ctx.spawn(fails, "helper")
        ctx.clock.sleep(5.0)

    with pytest.raises(RankFailed, match="rank 1, lane helper, raised ValueError: in the lane") as caught:
        simulated(main)
    assert caught.value.rank == 1


def test_a_daemon_lane_ends_with_the_run_and_no_thread_stays():
    def main(ctx: Context) -> str:
        ctx.spawn(lambda: ctx.queue().get(), "waits", daemon=True)
        ctx.clock.sleep(1.0)
        return "done"

    assert simulated(main).results == ["done", "done"]
    assert not [t for t in threading.enumerate() if t.name.startswith("rank ")]


def test_lanes_of_a_rank_overlap_in_virtual_time():
    def main(ctx: Context) -> float:
        lanes = [ctx.spawn(lambda: ctx.clock.sleep(2.0), f"lane{k}") for k in range(3)]
        for lane in lanes:
            lane.join()
        return ctx.clock.now()

    assert simulated(main).results == [2.0, 2.0]


# --- the same again, and overlap --------------------------------------------------------------------------------------


def data_parallel(ctx: Context) -> list[float]:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(ctx.rank)
    losses = []
    for step in range(4):
        ctx.mark_step(step, "begin")
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        ctx.mark_step(step, "end", loss=losses[-1])
    return losses


def test_two_runs_give_the_same_history_to_the_bit():
    first, second = (simulated(data_parallel, 3, compute=Roofline()) for _ in range(2))
    assert first.results == second.results
    assert first.logs == second.logs
    assert first.link_bytes == second.link_bytes


def test_charges_fall_inside_backward_so_that_communication_is_hidden_behind_it():
    for rank in split(simulated(data_parallel, 2, compute=Constant(100e-6))).ranks:
        last = rank.steps[-1].shares  # DDP has put its buckets into the order of backward by then
        assert 0.0 < last.exposed_communication < 0.5 * (last.exposed_communication + last.hidden_communication)


def test_collectives_meet_at_the_latest_entry():
    def main(ctx: Context) -> float:
        ctx.clock.sleep(float(ctx.rank))
        x = torch.ones(2)
        work = dist.all_reduce(x, async_op=True)
        entered = ctx.clock.now()
        work.wait()
        assert entered == float(ctx.rank) and x.tolist() == [3.0, 3.0]
        return ctx.clock.now()

    ends = simulated(main, 3).results
    assert ends[0] == ends[1] == ends[2] > 2.0
