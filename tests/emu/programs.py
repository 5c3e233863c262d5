"""What processes in emulated networks do in tests: they must be found by name in another process."""

import json
import os
import socket
import time
from pathlib import Path

PORT = 7000
PIECE = 1 << 20


def receive(address: str, size: int, result: str, port: int = PORT) -> None:
    """Write the payload rate of one stream, its first fifth left out: buckets were full, and TCP began slowly."""
    with socket.create_server((address, port)) as server:
        Path(result).with_suffix(".there").touch()
        connection, _ = server.accept()
    got, begun, at = 0, 0.0, 0
    with connection:
        while data := connection.recv(PIECE):
            got += len(data)
            if not begun and got >= size // 5:
                begun, at = time.monotonic(), got
    Path(result).write_text(json.dumps((got - at) / (time.monotonic() - begun)))


def send(address: str, size: int, result: str, port: int = PORT) -> None:
    while not Path(result).with_suffix(".there").exists():
        time.sleep(0.01)
    with socket.create_connection((address, port)) as connection:
        connection.sendall(bytes(size))


def exit_with(status: int, after: float = 0.0) -> None:
    time.sleep(after)
    os._exit(status)


def leave_somebody_behind(pids: str) -> None:
    """A process in a session of its own, which nobody waits for."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    Path(pids).write_text(str(pid))


def whoami(result: str) -> None:
    Path(result).write_text(json.dumps({"uid": os.getuid(), "name": socket.gethostname()}))


def sleep(seconds: float, ready: str) -> None:
    Path(ready).touch()
    time.sleep(seconds)
