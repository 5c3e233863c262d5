"""The command line: few verbs, few flags.

Exit codes: 0 all went well; 1 something failed while ranks ran; 2 what was asked for cannot be; 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from geartrain.cli.app import app
from geartrain.cli.output import complain
from geartrain.errors import ConfigurationError, GeartrainError

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit code. What the user got wrong is one message, never a traceback."""
    try:
        app(list(sys.argv[1:] if args is None else args), prog_name="geartrain")
    except GeartrainError as error:
        complain(error)
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)
