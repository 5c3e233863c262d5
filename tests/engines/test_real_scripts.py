"""Any script written for torchrun, recorded."""

import pytest

from geartrain.engines.real import launch_script
from geartrain.errors import RankFailed, ScriptError

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("processes")]

SCRIPT = """
import atexit, os, sys
import torch, torch.distributed as dist
from helper import WORD

atexit.register(print, "at exit")
dist.init_process_group("gloo")
rank = dist.get_rank()
assert dist.get_backend() == "gloo" and dist.get_world_size() == int(os.environ["WORLD_SIZE"])
total = torch.ones(2)
dist.all_reduce(total)
dist.all_reduce(total, group=dist.new_group(range(dist.get_world_size()), backend="gloo"))
found = [None] * dist.get_world_size()
dist.all_gather_object(found, rank)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
ddp(torch.ones(1, 2)).sum().backward()
print(WORD, sys.argv[1:], int(total[0]), found, __name__)
dist.destroy_process_group()
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "helper.py").write_text("WORD = 'hello'\n")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_script_runs_as_under_torchrun(script, ranks, capfd):
    record = launch_script(script, ["0", "--flag"], ranks=ranks)
    assert len(record.logs) == ranks
    kinds = [op.kind for op in record.logs[0].ops]
    assert kinds[0] == "all_reduce" and {"all_gather", "broadcast"} <= set(kinds)
    keys = [{op.key for op in log.ops} for log in record.logs]
    assert all(other == keys[0] for other in keys)
    assert len({key[0] for key in keys[0]}) >= 2
    if ranks == 2:
        lines = sorted(line for line in capfd.readouterr().out.splitlines() if "hello" in line)
        said = f"hello ['0', '--flag'] {ranks * ranks} {list(range(ranks))} __main__"
        assert lines == [f"[{rank}] {said}" for rank in range(ranks)]


def test_the_exit_status_of_a_script_counts(script, capfd):
    with pytest.raises(RankFailed, match="left early, with exit status 3") as caught:
        launch_script(script, ["3"], ranks=2)
    assert caught.value.rank in (0, 1)


def test_a_script_that_is_not_there():
    with pytest.raises(ScriptError, match="there is no script"):
        launch_script("nowhere.py", ranks=2)
