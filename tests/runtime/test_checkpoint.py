"""Files of checkpoints: what goes in comes out, and only what is complete is found."""

import pytest
import torch

from geartrain.cluster.load import load_cluster
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import ConfigurationError
from geartrain.runtime.checkpoint import Checkpoints, checkpoints, latest, read_info
from geartrain.runtime.loop import Training
from geartrain.runtime.saved_state import read_state, write_state
from geartrain.strategies import parse
from tests.conformance.tasks import Curve

CLUSTER = load_cluster("ethernet-10g")


def train(folder, *, steps=5, every=2, task=None, **settings):
    kept = Checkpoints(folder=folder, every=every, **settings)
    main = Training(strategy=parse("synchronous"), task=task or Curve(), steps=steps, batch=8, checkpoints=kept)
    return SimulatedEngine().run(main, CLUSTER, workers=2)


def test_state_keeps_its_kinds(tmp_path):
    state = {
        "a": {0: torch.arange(3.0), "b.c": torch.tensor(4, dtype=torch.int32)},
        "a.b": {"c": torch.ones(2, dtype=torch.bfloat16)},
        "rest": [None, (1, 2.5, "x"), torch.empty(0), {"deep": [torch.zeros(2, 2)]}],
        "view": torch.arange(10)[3:5],
    }
    write_state(tmp_path / "state", state)
    found = read_state(tmp_path / "state")
    assert found["a"][0].tolist() == [0, 1, 2] and found["a"]["b.c"].dtype == torch.int32
    assert found["a.b"]["c"].dtype == torch.bfloat16 and found["rest"][:2] == [None, (1, 2.5, "x")]
    assert found["rest"][2].numel() == 0 and found["rest"][3]["deep"][0].shape == (2, 2)
    assert found["view"].tolist() == [3, 4]


def test_other_tools_find_the_model(tmp_path):
    from torch.distributed.checkpoint import FileSystemReader

    train(tmp_path)
    names = FileSystemReader(latest(tmp_path) / "rank-000").read_metadata().state_dict_metadata
    assert {"worker.model.0.weight", "worker.optimizer.state.0.exp_avg"} <= set(names)


def test_only_complete_ones_are_found(tmp_path):
    train(tmp_path)
    (tmp_path / "step-00000009").mkdir()
    (tmp_path / ".step-00000006").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000002", "step-00000004"]
    assert latest(tmp_path / "nothing") is None
    train(tmp_path, steps=7, resume=latest(tmp_path))
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000004", "step-00000006"]
    assert not (tmp_path / ".step-00000006").exists() and (tmp_path / "step-00000009").exists()  # not ours


def test_starting_anew_forgets_what_was_there(tmp_path):
    train(tmp_path, steps=9)
    train(tmp_path, steps=3)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000002"]
    assert len(list((tmp_path / "log").iterdir())) == 2


def test_a_failed_run_leaves_the_last_complete_one(tmp_path):
    class Failing(Curve):
        def loss(self, model, batch):
            self.__dict__["count"] = self.__dict__.get("count", 0) + 1
            if self.__dict__["count"] == 7:  # two workers: in the fourth step
                raise KeyError("no more")
            return super().loss(model, batch)

    with pytest.raises(Exception, match="no more"):
        train(tmp_path, task=Failing())
    assert read_info(latest(tmp_path)).step == 2


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="is no checkpoint"):
        read_info(tmp_path)
    train(tmp_path)
    (latest(tmp_path) / "rank-001" / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"rank-001.* cannot be read"):
        train(tmp_path, resume=latest(tmp_path))
    with pytest.raises(ConfigurationError, match="every -1 steps"):
        Checkpoints(folder=tmp_path, every=-1)


def test_saving_takes_no_virtual_time(tmp_path):
    plain = SimulatedEngine().run(
        Training(strategy=parse("synchronous"), task=Curve(), steps=5, batch=8), CLUSTER, workers=2
    )
    assert train(tmp_path).logs == plain.logs
