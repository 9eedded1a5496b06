"""Stands for a Python that is started: gives its files to a process that has the imports behind it.

That process listens at the socket that the first argument names, and runs the program of the last one. This
one needs nothing but the standard library, and ends as that one does.
"""

import socket
import sys


def main(address: str, program: str) -> int:
    """The exit code of the process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(address)
        socket.send_fds(line, [program.encode()], [0, 1, 2])
        return int(line.recv(16) or b"1")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[-1]))
