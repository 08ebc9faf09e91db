"""A stand-in for ``python`` whose process comes from the fork server: ``forked_python.py SERVER SCRIPT ARGUMENT...``.

For commands that a shell or a terminal starts: the script gets this process's environment and standard streams, closed
ones too, and this process ends as the script does. It does not pass on signals.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence


def ask(
    client: socket.socket,
    server: str,
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    streams: Mapping[int, int],
) -> None:
    """Asks the server of that name for a process: see `tests.cluster.fork_server`.

    Args:
        client: Is connected to it.
        server: Its abstract socket.
        command: The script and its arguments.
        env: All variables of the process.
        cwd: Its folder.
        streams: The descriptor of each of its standard streams, by number.
    """
    script, *arguments = command
    request = {
        "script": os.path.abspath(script),
        "args": arguments,
        "env": dict(env),
        "cwd": cwd,
        "streams": list(streams),
    }
    client.connect(f"\0{server}")
    socket.send_fds(client, [json.dumps(request).encode() + b"\n"], list(streams.values()))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def main() -> None:
    # Asked before the socket takes the number of a closed one.
    streams = {number: number for number in (1, 2) if _is_open(number)}
    server, *command = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as client:
        ask(client, server, command, dict(os.environ), os.getcwd(), streams)
        with client.makefile("r") as answers:
            answers.readline()
            code = int(answers.readline() or -signal.SIGKILL)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
