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


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def main() -> None:
    streams = [
        number for number in (1, 2) if _is_open(number)
    ]  # Before the socket takes the number of a closed one.
    server, script, *arguments = sys.argv[1:]
    request = {
        "script": os.path.abspath(script),
        "args": arguments,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "streams": streams,
    }
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0{server}")
        socket.send_fds(client, [json.dumps(request).encode() + b"\n"], streams)
        with client.makefile("r") as answers:
            answers.readline()
            code = int(answers.readline() or -signal.SIGKILL)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
