import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.slow
@pytest.mark.multi
@pytest.mark.timeout(400)
def test_demo_ends_with_who_wins(workdir):
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, cwd=workdir)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "On ethernet-1g with 16 workers" in lines[-2] and "on ethernet-10g with 16 workers" in lines[-2]
    assert len(list((workdir / "runs" / "demo").glob("*/*/run.json"))) == 5 + 2 * 4 * 5
