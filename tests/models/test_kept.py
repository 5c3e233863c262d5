"""Traces kept between processes: the same workload without tracing, and never a wrong or a broken one."""

import pytest

from geartrain.models import kept as module
from geartrain.models.kept import kept_workload
from geartrain.workload.plain import as_plain, from_plain
from geartrain.workload.spec import Kernel, Layer, Lookup, MemoryShape, Parameter, Part, Workload

KERNEL = Kernel(
    op="aten.embedding.default",
    shapes=(((8, 0), (4, 0)), ((0, 1), (4, 0))),
    dtypes=("float32", "int64"),
    flop=(0.0, 0.1),
    nbytes=(1e300, 1 / 3),
    lookup=Lookup(rows=8, width=4, per_sample=1.5, skew=0.5),
)
LAYER = Layer(
    name="l", parameters=(Parameter("l.weight", (8, 4), 0),), forward_flop=3, forward_kernels=(KERNEL, KERNEL)
)
MEMORY = MemoryShape(
    buffers=1, forward=((1.0, 2.0),), backward_fresh=((3.0, 4.0), (5.0, 6.0)), backward_kept=(), update=7
)
WORKLOAD = Workload(
    name="w", source="chosen", layers=(LAYER,), memory=MEMORY, parts=(Part(modules=("l",), shape=(4,)),)
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "WORTH", 0.0)
    return tmp_path / "geartrain" / "traces"


def never():
    raise AssertionError("traced, though it was kept")


def test_every_field_comes_back_to_the_last_bit():
    again = from_plain(Workload, as_plain(WORKLOAD))
    assert again == WORKLOAD
    assert repr(again) == repr(WORKLOAD)  # also where 3 == 3.0


def test_a_second_process_reads_it(folder):
    assert kept_workload("w", lambda: WORKLOAD) is WORKLOAD
    assert kept_workload("w", never) == WORKLOAD
    with pytest.raises(AssertionError):
        kept_workload("w:dtype=bf16", never)


def test_other_sources_trace_anew(folder, monkeypatch):
    kept_workload("w", lambda: WORKLOAD)
    monkeypatch.setattr(module, "_sources", lambda: "others")
    with pytest.raises(AssertionError):
        kept_workload("w", never)


@pytest.mark.parametrize("broken", ["", "{}", "[1, 2]", "[]", "null", '"w"'])
def test_what_cannot_be_read_is_traced(folder, broken):
    kept_workload("w", lambda: WORKLOAD)
    (path,) = folder.iterdir()
    path.write_text(broken)
    assert kept_workload("w", lambda: WORKLOAD) is WORKLOAD
    assert kept_workload("w", never) == WORKLOAD


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(module, "WORTH", 0.0)
    assert kept_workload("w", lambda: WORKLOAD) is WORKLOAD


def test_what_is_traced_in_no_time_is_not_kept(folder, monkeypatch):
    monkeypatch.setattr(module, "WORTH", 10.0)
    kept_workload("w", lambda: WORKLOAD)
    assert not folder.exists()
