"""What real gloo gives: `python -m tests.sim.references OUT` leaves `OUT/<world size>/<rank>.pt`.

Processes are forked from one that has everything imported, since importing is most of their work. Examples run the
same way; what rank r printed is in `OUT/<world size>/<example>.<r>.txt`.
"""

import faulthandler
import importlib
import os
import runpy
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ("ddp", "fsdp2", "tensor_parallel", "pipeline_1f1b")
SIZES = (2, 4)
IMPORTS = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining")
PATIENCE = 40  # seconds for all ranks of one world; chosen, ten times what they take


def in_processes(size: int, body: Callable[[int], None]) -> None:
    """Fork `size` ranks with torchrun's variables and wait for them; SystemExit when one fails or hangs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(size):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            local = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            os.environ.update({name: str(value) for name, value in local.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            body(rank)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            leave(code)
    failed = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(failed):
        raise SystemExit(f"gloo with {size} ranks ended with {failed}")


def leave(code: int) -> None:
    """End the process here and now, with all that was printed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def example(name: str, out: Path, rank: int) -> None:
    """Run an example as a rank, with its output in a file."""
    import torch.distributed as dist

    path = ROOT / "examples" / f"{name}.py"
    sys.argv[:] = [str(path)]
    sys.stdout = (out / f"{name}.{rank}.txt").open("w")  # for good: the process ends with the example
    dist.destroy_process_group = lambda: leave(0)  # its own end now and then waits for peers that are gone
    runpy.run_path(str(path), run_name="__main__")


def main(out: Path, names: Sequence[str]) -> None:
    import torch

    from geartrain.torch_private import SLOW_IMPORTS
    from tests.sim import two_worlds

    for module in (*IMPORTS, *SLOW_IMPORTS):
        importlib.import_module(module)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for size in SIZES:
        (out / str(size)).mkdir(parents=True, exist_ok=True)
        in_processes(size, lambda _: two_worlds.main(out / str(size), list(names)))  # noqa: B023
        for name in () if names else EXAMPLES:
            in_processes(size, lambda rank: example(name, out / str(size), rank))  # noqa: B023


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
