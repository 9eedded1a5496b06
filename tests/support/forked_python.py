"""Stands for a Python that is started: gives its files to a process that has the imports behind it.

That process listens at the socket that the first argument names, and runs the program of the last one. This
one needs nothing but the standard library, and ends as that one does. Where nobody listens any more, as after
the crash of a worker, it is a Python that is started.
"""

import os
import socket
import sys


def main(address: str, *arguments: str) -> int:
    """The exit code of the process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        try:
            line.connect(address)
        except OSError:
            os.execv(sys.executable, [sys.executable, *arguments])
        socket.send_fds(line, [arguments[-1].encode()], [0, 1, 2])
        return int(line.recv(16) or b"1")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
