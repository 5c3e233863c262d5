"""A device whose host launches ahead, on the virtual clock: as in the closed form, and by hand where ranks wait."""

from dataclasses import replace

import pytest
import torch

from geartrain.cluster.load import load_cluster
from geartrain.cost.compute import Work, step_times
from geartrain.cost.profile import Overheads, Profiled
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.charging import charge
from geartrain.runtime.loop import Training
from geartrain.strategies import parse
from geartrain.tasks.workload_task import WorkloadTask
from geartrain.workload.spec import Parameter, Workload
from tests.cost.test_profile import RELU, layered, profile

CLUSTER = load_cluster("ethernet-10g")
RELU_WORK = Work("aten.relu.default", 4.0, 50.0, key=RELU)  # 5 s


def model(between):
    return Profiled(
        profile(queued=True, overheads=Overheads(between=between, before={}, after={}, inside={}, launch=0.0))
    )


def run(main, between=1.0, workers=1):
    return SimulatedEngine(model(between)).run(main, CLUSTER, workers=workers).results


def test_the_host_runs_ahead_until_it_reads_a_number():
    def main(ctx):
        times = []
        for read in (False, False, True, False):
            charge(RELU_WORK)
            if read:
                torch.ones(()).item()
            times.append(ctx.clock.now())
        return times

    (times,) = run(main)
    assert times[0] == 6.0
    # The number that is read is made by a kernel of its own, which is why only the last step is compared.
    assert times[1] == 11.0
    assert times[3] - times[2] == pytest.approx(1.0 + 5.0)


def test_who_waits_for_others_has_launched_meanwhile():
    def main(ctx):
        charge(RELU_WORK)
        ctx.clock.sleep(10.0)  # the device stands still; the host goes on
        charge(RELU_WORK)
        return ctx.clock.now()

    assert run(main) == [6.0 + 10.0 + 5.0]


@pytest.mark.parametrize("between", [0.0, 1.0, 4.0, 7.0])
def test_steps_take_what_the_closed_form_says(between):
    weights = tuple(Parameter(f"{name}.weight", (3,), index) for index, name in enumerate("ab"))
    layers = tuple(
        replace(layered(2, 3, name), parameters=(weight,)) for name, weight in zip("ab", weights, strict=True)
    )
    workload = Workload(name="two", source="chosen", layers=layers, update_kernels=1)
    training = Training(task=WorkloadTask(workload), strategy=parse("single"), steps=3, batch=1)
    log = SimulatedEngine(model(between)).run(training, CLUSTER, workers=1, meta=True).logs[0]
    closed = step_times(workload, CLUSTER.nodes[0].device, 1, model(between)).total
    assert [step.end - step.begin for step in log.steps] == pytest.approx([closed] * 3)
