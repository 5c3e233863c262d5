"""How long a plan takes: GPT-2 XL on 64 devices.

    python benchmarks/plan.py

Runs the command line in a process of its own, from the start of Python to the printed plan, and ends with status 1 when
that takes longer than the bar. Real seconds; the second number is the processor time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

BAR = 60.0
WORDS = ("plan", "--workload", "gpt2-xl", "--cluster", "dgx-a100", "--ranks", "64")


def main() -> int:
    """The exit code."""
    before, begin = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "geartrain", *WORDS, "--json"], capture_output=True, text=True, check=True
    )
    seconds, after = time.perf_counter() - begin, os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    found = json.loads(done.stdout)
    kept = seconds <= BAR
    verdict = f"bar {BAR:.0f} s: {'kept' if kept else 'missed'}"
    print(f"{' '.join(WORDS)}: {seconds:.1f} s ({processor:.1f} s of a processor), {verdict}")
    print(f"  {found['command']}")
    for line in (*found["notes"], *found["why"]):
        print(f"  {line}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
