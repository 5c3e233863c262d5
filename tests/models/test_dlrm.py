"""DLRM: scores by hand, and what its look-ups cost."""

import itertools

import torch

from geartrain.models import get_workload
from geartrain.models.dlrm import DLRM, DLRMSize
from geartrain.tasks.workload_task import WorkloadTask

SIZE = DLRMSize(bottom=(3, 6, 4), rows=(5, 7), top=(5, 1), lookups=2)


def test_scores_by_hand():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = DLRM(SIZE)
        dense = torch.randn(2, 3)
    indices = torch.tensor([[[0, 4], [6, 6]], [[1, 1], [2, 3]]])
    first = model.bottom(dense)
    sums = [table.weight[indices[:, at]].sum(1) for at, table in enumerate(model.tables)]
    vectors = [first, *sums]
    products = [
        (vectors[j] * vectors[i]).sum(1) for i, j in sorted((i, j) for j, i in itertools.combinations(range(3), 2))
    ]
    expected = model.top(torch.cat([first, torch.stack(products, dim=1)], dim=1))
    torch.testing.assert_close(model(dense, indices), expected)


def test_a_stand_in_has_its_parameters():
    names = [name for name, _ in WorkloadTask(get_workload("dlrm-ddp")).model(0).named_parameters()]
    assert names[:2] == ["bottom.0.weight", "bottom.0.bias"] and names[-1] == "top.8.bias"
    assert len(names) == 2 * 3 + 8 + 2 * 5


def test_a_look_up_reads_its_rows_and_no_others():
    workload = get_workload("dlrm:lookups=10,skew=1.05")
    table = next(layer for layer in workload.layers if layer.name == "tables.3")
    (bag,) = (kernel for kernel in table.forward_kernels if kernel.lookup)
    rows, out, numbers = 10 * 64 * 4, 64 * 4, 10 * 8
    # Beside them: where each bag begins, and two more outputs of whole numbers.
    assert rows + out + numbers <= bag.nbytes[1] <= rows + out + 3 * numbers + 3 * 8
    assert (bag.nbytes[0], bag.flop) == (0, (0, 10 * 64))
    assert (bag.lookup.rows, bag.lookup.width, bag.lookup.per_sample, bag.lookup.skew) == (1_000_000, 64, 10, 1.05)
    # The gradient of a table is dense: all of it is written.
    assert table.backward_fixed_bytes >= 1_000_000 * 64 * 4
