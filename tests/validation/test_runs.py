"""From outcomes to a section, and going on where a validation was ended; nothing runs here."""

import itertools
import json

import pytest
from rich.console import Console

from geartrain.compare.grid import Cell
from geartrain.engines.emulated import EmulatedEngine
from geartrain.errors import ConfigurationError
from geartrain.validation import runs
from geartrain.validation.cells import Outcome, Runner, bandwidth_term, step_of
from geartrain.validation.grid import FOLDER, GRID_FILE, load_grids
from geartrain.validation.runs import COLUMNS, describe, run_cases, runs_section
from geartrain.validation.section import Section
from geartrain.validation.table import print_section, section_table, validation_json
from tests.record.logs import Blocked, rank, record
from tests.validation.outcomes import case, outcome

FILE = load_grids(FOLDER / GRID_FILE)
KEYS = [
    "grid",
    "engine",
    "task",
    "strategy",
    "cluster",
    "workers",
    "ranks",
    "batch",
    "steps",
    "simulated",
    "measured",
    "errors",
    "bandwidth_term",
    "small_collective",
    "host_busy",
    "folders",
    "failed",
    "config",
    "trustworthy",
    "why_not",
]


class Told:
    def __init__(self):
        self.lines = []

    def start(self, what):
        self.lines.append(what)

    def done(self, what):
        self.lines.append(what)


def section():
    bound = outcome(2.0, 4.0, on=case("parameter_server"), host_busy=0.9)
    lost = Outcome(case=case("peer_to_peer"), failed="rank 1 was lost\n  see there")
    return runs_section("emulated", FILE, [outcome(1.02, 1.0), bound, lost])


def test_a_section_shows_every_cell_with_its_error():
    found = section()
    assert [row[COLUMNS.index("trustworthy")] for row in found.rows] == ["yes", "host-bound: host busy 90%", "failed"]
    assert found.rows[0][7] == pytest.approx(0.02) and found.rows[1][7] == -0.5 and found.rows[2][7] is None
    assert found.missed == 2  # a third of the cells is trustworthy, and one failed
    assert "g: cells that failed, none: 1 (g: peer_to_peer, digits, 2 workers, ethernet-1g)   MISSED" in found.notes


def test_json_has_its_keys():
    whole = json.loads(json.dumps(validation_json({"emulated": section()}, quick=True)))
    assert list(whole) == ["format", "versions", "quick", "missed", "sections"]
    assert (whole["format"], whole["quick"], whole["missed"]) == (1, True, 2)
    emulated = whole["sections"]["emulated"]
    assert list(emulated) == ["title", "columns", "rows", "notes", "missed", "details"]
    assert list(emulated["details"]) == ["cells", "bars", "order"]
    cell = emulated["details"]["cells"][1]
    assert list(cell) == KEYS
    assert (cell["ranks"], cell["trustworthy"], cell["simulated"]["step_time"]) == (3, False, 2.0)
    assert emulated["details"]["order"] == [{"group": ["g", "digits", "ethernet-1g", 2], "tau": 1.0}]


def test_a_real_cell_is_shown_without_a_verdict():
    found = runs_section("real", FILE, [outcome(2.0, 1.0, on=case(engine="real", judged=False), host_busy=None)])
    assert (found.missed, found.rows[0][-1], found.rows[0][-2]) == (0, "-", None)
    assert found.details["cells"][0]["trustworthy"] is None


def test_a_table_for_people_has_units_and_percent():
    found = Section(title="T", columns=("a [s]", "b [%]", "c"), rows=[(0.0021, 0.5, True), (1.0, None, "[x]")])
    console = Console(width=60, record=True)
    console.print(section_table(found))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["[ms]", "[%]", "c"] in lines and ["2.1", "+50.0", "yes"] in lines and ["1000", "-", "[x]"] in lines


def test_a_section_without_rows_says_why(capsys):
    print_section(Console(), Section(title="T", columns=("a",), rows=[], notes=["not run: no wires here"]))
    assert capsys.readouterr().out.splitlines()[:2] == ["T", "not run: no wires here"]


def test_rows_fit_their_columns():
    with pytest.raises(ValueError, match="a row of 1 values in a table of 2 columns"):
        Section(title="T", columns=("a", "b"), rows=[("x",)])


def test_the_bandwidth_term_is_that_of_the_busiest_link():
    run = record()
    run.link_bytes = {"node-0.up": 3e6, "node-1.down": 6e6}
    rate = {link.name: link.capacity for link in Cell(case().strategy, case().cluster, 2).place().links}["node-1.down"]
    assert bandwidth_term(case(), run) == pytest.approx(6e6 / rate / 3)
    run.link_bytes = {}
    assert bandwidth_term(case(), run) is None


def test_cells_that_ended_are_read_when_it_goes_on(tmp_path, monkeypatch):
    ran = []

    def fake(self, one):
        ran.append(str(one.strategy))
        return outcome(1.02, 1.0, on=one, folders={"simulated": "runs/a"})

    monkeypatch.setattr(Runner, "_run", fake)
    both = [case("synchronous"), case("peer_to_peer")]
    first = run_cases(both[:1], tmp_path, False, Told())
    told = Told()
    second = run_cases(both, tmp_path, True, told)
    assert ran == ["synchronous", "peer_to_peer"]
    assert second.outcomes[0] == first.outcomes[0]
    assert "(read)" in told.lines[1] and "(read)" not in told.lines[3]
    run_cases([case("synchronous", steps=4)], tmp_path, True, Told())
    assert ran[-1] == "synchronous", "of another configuration"


def test_ctrl_c_leaves_what_had_ended(tmp_path, monkeypatch):
    def fake(self, one):
        if str(one.strategy) == "peer_to_peer":
            raise KeyboardInterrupt
        return outcome(on=one)

    monkeypatch.setattr(Runner, "_run", fake)
    found = run_cases([case("synchronous"), case("peer_to_peer")], tmp_path, False, Told())
    assert found.interrupted and [str(one.case.strategy) for one in found.outcomes] == ["synchronous"]
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [f"{case().name}.json"]


def test_an_engine_that_cannot_run_here_says_so(monkeypatch):
    def refused(self, *args, **options):
        raise ConfigurationError("no network namespaces here")

    monkeypatch.setattr(EmulatedEngine, "run", refused)
    found = runs.not_possible("emulated")
    assert found.missed == 0 and "no network namespaces here" in found.notes[0]
    assert runs.not_possible("real") is None


def test_a_failed_cell_in_one_line():
    assert describe(Outcome(case=case(), failed="lost\nmore")).endswith("ethernet-1g: failed: lost")
    assert describe(outcome(1.1, 1.0)).endswith("1.1 s simulated, 1 s measured, +10.0%")


def test_phases_are_means_over_the_workers_and_the_step_is_its_slowest_workers():
    """In step 1 rank 0 computes for 3 s and waits for 1 s, rank 1 computes for 6 s; step 0 warms up."""
    first = rank(0, blocked=[Blocked(1.0, 2.0, None, "", "queue")], steps=[(0.0, 1.0), (1.0, 5.0)])
    second = rank(1, steps=[(0.0, 1.0), (1.0, 7.0)])
    server = rank(2, steps=[(0.0, 1.0), (1.0, 9.0)], role="server")
    run = record(first, second, server)
    found = step_of(run)
    assert (found.step_time, found.compute, found.wait, found.exposed_communication) == (6.0, 4.5, 0.5, 0.0)
    assert step_of(None) is None


@pytest.mark.parametrize(("steps", "counted"), [(1, 1), (2, 1), (3, 2), (6, 4), (8, 5)])
def test_a_third_of_the_steps_warms_up(steps, counted):
    """Steps that warm up take 9 s, the others 1 s; a single step is all there is."""
    warm_up = steps - counted
    ends = list(itertools.accumulate(9.0 if step < warm_up else 1.0 for step in range(steps)))
    one = rank(0, steps=list(zip([0.0, *ends], ends, strict=False)))
    assert step_of(record(one)).step_time == 1.0
