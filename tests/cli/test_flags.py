"""The whole command line: a new verb or flag is a decision, and this list is where it is taken."""

import subprocess
import sys

import typer

from geartrain.cli.app import app

FLAGS = {
    "": ["--version"],
    "calibrate": [
        "--cluster",
        "--device",
        "--engine",
        "--force",
        "--json",
        "--out",
        "--profile",
        "--quick",
        "--ranks",
        "--sizes",
        "--trace",
    ],
    "clusters": ["--json"],
    "compare": [
        "--batch",
        "--charge-evaluation",
        "--checkpoint-every",
        "--cluster",
        "--compute",
        "--engine",
        "--evaluate-every",
        "--jobs",
        "--json",
        "--out",
        "--ranks",
        "--resume",
        "--seed",
        "--steps",
        "--strategies",
        "--target-loss",
        "--target-metric",
        "--task",
        "--workload",
    ],
    "emulate": ["--clean", "--cluster", "--compute", "--json", "--ranks", "--torchrun", "--trace"],
    "plan": [
        "--batch",
        "--cluster",
        "--compute",
        "--efficiency",
        "--json",
        "--out",
        "--ranks",
        "--statistics",
        "--task",
        "--workload",
    ],
    "predict": [
        "--batch",
        "--batch-per-rank",
        "--cluster",
        "--compute",
        "--json",
        "--ranks",
        "--simulate",
        "--strategies",
        "--task",
        "--workload",
    ],
    "report": ["--out"],
    "run": ["--json", "--ranks", "--trace"],
    "simulate": ["--cluster", "--compute", "--json", "--ranks", "--real-clock", "--trace"],
    "strategies": ["--json"],
    "sweep": [
        "--batch",
        "--batch-per-rank",
        "--cluster",
        "--compute",
        "--json",
        "--out",
        "--ranks",
        "--simulate",
        "--strategies",
        "--task",
        "--vary",
        "--workload",
    ],
    "tasks": ["--json"],
    "validate": ["--files", "--json", "--only", "--out", "--quick", "--resume"],
    "workloads": ["--json"],
}


def flags(command):
    return sorted(flag for param in command.params for flag in param.opts if flag.startswith("-") and flag != "--help")


def test_commands_and_flags():
    group = typer.main.get_command(app)
    assert {"": flags(group), **{name: flags(command) for name, command in group.commands.items()}} == FLAGS


def test_every_flag_and_command_says_what_it_does():
    group = typer.main.get_command(app)
    for command in [group, *group.commands.values()]:
        assert command.help
        assert all(param.help for param in command.params if param.name != "help"), command.name


def test_help_needs_no_torch():
    lines = [
        "import sys",
        "from geartrain.cli import main",
        "try: main(['compare', '--help'])",
        "except SystemExit: pass",
    ]
    code = "\n".join([*lines, "sys.exit('torch' in sys.modules)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--strategies" in done.stdout
