"""Run folders made by hand, small enough to know what a report must say about them."""

import json

from geartrain.record.files import RunFolder
from geartrain.record.log import Blocked, Op, RankLog, RunRecord, Span, StepMark
from geartrain.record.means import mean_step
from geartrain.record.split import split

COMPUTE, TRANSFER = 0.004, 0.002


def log_of(rank, num_ranks, steps, *, late=0.0, role="worker", lanes=False, scale=1.0):
    """Each step: compute, then an all-reduce that the last rank enters `late` seconds after the others."""
    log, length = RankLog(rank, role), COMPUTE + late + scale * TRANSFER
    for step in range(steps):
        begin = step * length
        posted = begin + COMPUTE + (late if rank == num_ranks - 1 else 0.0)
        end = begin + length
        key = ("workers", step)
        log.ops.append(Op(key, "all_reduce", 1000 * (rank + 1), 2, posted, "", tuple(range(num_ranks)), 4000, end))
        log.blocked.append(Blocked(posted, end, key, ""))
        if lanes:
            log.blocked.append(Blocked(begin, begin + COMPUTE, None, "averaging", "queue"))
            log.spans.append(Span(begin, begin + COMPUTE / 2, "mix <b>models</b>", "averaging"))
        log.steps.append(StepMark(step, begin, end, {"loss": 2.0 / (step + 1), "samples": 8}))
    log.end = steps * length
    return log


def record_of(num_ranks, steps=4, *, late=0.001, lanes=False, scale=1.0, server=False):
    logs = [log_of(rank, num_ranks, steps, late=late, lanes=lanes, scale=scale) for rank in range(num_ranks)]
    if server:
        logs[-1].role = "server"
    links = {f"node-{rank}.up": 1000.0 * (rank + 1) for rank in range(num_ranks)}
    results = [None] * num_ranks
    return RunRecord(engine="simulated", logs=logs, results=results, wall=0.1, virtual=True, link_bytes=links)


def write_run(folder, record, *, strategy="synchronous", cluster="ethernet-1g", closed_form=None, **summary):
    """A run folder as `geartrain compare` leaves it."""
    parts = split(record)
    mean = mean_step(parts)
    workers = sum(log.role == "worker" for log in record.logs)
    config = {"strategy": strategy, "subject": "digits", "cluster": {"name": cluster}, "batch": 8 * workers, "seed": 0}
    known = {
        "strategy": strategy,
        "engine": record.engine,
        "cluster": cluster,
        "ranks": workers,
        "steps": len(record.logs[0].steps),
        "step_time": mean.step_time,
        "compute": mean.compute,
        "exposed_communication": mean.exposed_communication,
        "wait": mean.wait,
        "bytes_sent_per_rank": mean.bytes_sent,
        "messages_per_rank": mean.messages,
        "final_loss": 0.5,
        "metric": 0.25,
        "metrics": {"accuracy": 0.25},
        "closed_form_step_time": closed_form,
        "error": None,
    }
    form = None if closed_form is None else {"compute": COMPUTE, "sent": [], "notes": []}
    RunFolder(folder).write(record, parts, config=config, summary={**known, **summary}, cost=form)
    return folder


def write_grid(folder, *, strategies=("synchronous", "peer_to_peer"), ranks=(2, 4), failed=()):
    """A grid: the second strategy's transfers take twice as long, the third's three times; `failed` left no files."""
    cells = []
    for workers in ranks:
        for i, strategy in enumerate(strategies):
            record = record_of(workers, scale=i + 1.0)
            write_run(folder / f"{strategy}--{workers}".replace("/", "-"), record, strategy=strategy, closed_form=0.007)
            cells.append({"strategy": strategy, "engine": "simulated", "cluster": "ethernet-1g", "ranks": workers})
        for strategy in failed:
            cells.append({"strategy": strategy, "engine": "simulated", "cluster": "ethernet-1g", "ranks": workers})
    (folder / "compare.json").write_text(json.dumps(cells))
    return folder


def cell_of(name, strategy, simulated, measured, *, doubt=None, folders=None):
    """A cell of validation.json: step times, of which a quarter is communication."""

    def mean(seconds):
        parts = {"compute": 0.75 * seconds, "exposed_communication": 0.25 * seconds, "wait": 0.0}
        return {"steps": 3, "step_time": seconds, **parts, "hidden_communication": 0.0, "bytes_sent": 1, "messages": 1}

    return {
        "grid": name,
        "engine": "emulated",
        "task": "digits",
        "strategy": strategy,
        "cluster": "star-1g",
        "workers": 4,
        "simulated": mean(simulated) if simulated else None,
        "measured": mean(measured) if measured else None,
        "trustworthy": doubt is None,
        "why_not": doubt,
        "folders": folders,
        "failed": None if measured else "rank 1 was killed",
    }


def section_of(title, columns, rows, *, notes=(), missed=0, **details):
    return {
        "title": title,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "notes": list(notes),
        "missed": missed,
        "details": details,
    }


def write_validation(folder, cells=None):
    """A folder as `geartrain validate --out` leaves it: a cell with both runs, one that is slower, a host-bound one."""
    for engine, scale in (("simulated", 1.0), ("emulated", 1.2)):
        record = record_of(3, scale=scale)
        record.engine, record.virtual = engine, engine == "simulated"
        write_run(folder / "runs" / engine, record, cluster="star-1g")
    folders = {"simulated": "runs/simulated", "measured": "runs/emulated"}
    known = [
        cell_of("alike", "synchronous", 0.100, 0.104, folders=folders),
        cell_of("alike", "peer_to_peer", 1.300, 1.000),
        cell_of("alike", "parameter_server", 0.010, 0.030, doubt="host-bound: host busy 95%"),
        cell_of("alike", "single", 0.010, None),
    ]
    runs = section_of(
        "Simulated against emulated",
        ("strategy", "measured [s]", "step error [%]", "trustworthy"),
        [["synchronous", 0.104, -0.04, "yes"], ["single", None, None, "failed"]],
        notes=["a sentence", "alike: worst error: 0.3   MISSED"],
        missed=1,
        cells=known if cells is None else cells,
    )
    network = section_of("The network alone", ("check", "error", "holds"), [["fair", 1e-12, True]])
    content = {"format": 1, "missed": 1, "sections": {"network": network, "emulated": runs}}
    (folder / "validation.json").write_text(json.dumps(content))
    return folder
