"""How a rank says that its program begins now: what links carried until then was the engine's."""

from __future__ import annotations

import socket

channel: socket.socket | None = None
"""To the station; None in a process that none has forked."""


def program_begins() -> None:
    """Called by one rank when all are there; returns when the station has noted what links have carried."""
    if channel is not None:
        channel.send(b"?")
        channel.recv(1)
