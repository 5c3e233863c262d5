"""The table of tasks, and tasks of the user's own."""

import pickle

import pytest

from geartrain.errors import TaskError, UnknownName
from geartrain.runtime.worker import Task
from geartrain.tasks import TASKS, get_task
from geartrain.tasks.digits import Digits
from geartrain.tasks.packages_text import PackagesText
from geartrain.tasks.workload_task import WorkloadTask

OWN = """
from geartrain.tasks.digits import Digits
from geartrain.tasks.packages_text import PackagesText

class Mine(Digits):
    name = "mine"

class Needy(Digits):
    def __init__(self, size):
        self.size = size
"""


@pytest.mark.parametrize("name", TASKS)
def test_every_task_says_what_it_is(name):
    task = get_task(name)
    assert task.name == name and task.source and type(task).__doc__


def test_a_workload_is_a_task():
    task = get_task("resnet50")
    assert isinstance(task, WorkloadTask) and task.name == "resnet50"


def test_unknown_task():
    with pytest.raises(UnknownName, match="did you mean 'digits'"):
        get_task("digit")


def test_own_task(workdir):
    (workdir / "own.py").write_text(OWN)
    task = get_task("own.py:Mine")
    assert isinstance(task, Task) and task.name == "mine"
    assert isinstance(pickle.loads(pickle.dumps(task)), Digits)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("own.py:Other", UnknownName, "Mine"),
        ("own.py:Needy", TaskError, "without arguments"),
        ("nowhere.py:Mine", TaskError, "no file"),
    ],
)
def test_own_task_that_cannot_be_used(name, error, words, workdir):
    (workdir / "own.py").write_text(OWN)
    with pytest.raises(error, match=words):
        get_task(name)


def test_settings_stand_behind_a_tasks_name():
    task = get_task("digits:hidden=1536")
    assert sum(p.numel() for p in task.model(0).parameters()) == 4_810 + 523 * 1536
    assert get_task("packages-text:sparse=true") == PackagesText(sparse=True)
    assert pickle.loads(pickle.dumps(task)) == task


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("digits:hiden=3", UnknownName, "did you mean 'hidden'"),
        ("digits:hidden=wide", TaskError, "a whole number"),
        ("digits:hidden=0", TaskError, "1 or more"),
        ("digits:hidden", TaskError, "key=value"),
        ("digits:hidden=1,hidden=2", TaskError, "comes twice"),
        ("packages-text:sparse=1", TaskError, "true or false"),
        ("characters:width=3", UnknownName, "setting of task 'characters'"),
    ],
)
def test_settings_that_cannot_be(name, error, words):
    with pytest.raises(error, match=words):
        get_task(name)
