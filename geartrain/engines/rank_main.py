"""A rank that torchrun starts as a program of its own: `python -m geartrain.engines.rank_main FILE`."""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing import spawn
from pathlib import Path

from geartrain.engines.rank_process import run_rank

if __name__ == "__main__":
    setting, job = pickle.loads(Path(sys.argv[1]).read_bytes())
    spawn.prepare(setting)
    run_rank(job)
    os._exit(0)  # what is loaded need not be put in order
