"""This host: where others reach it, and whether its processes live."""

import asyncio
import ipaddress
import os
import socket
from collections.abc import Mapping

import psutil

from rlcore import WorkerError

_TICK_SECONDS = 0.5


def loopback_interface(address: str) -> str | None:
    """The network interface of the IP address `address` if it is a loopback address; else None."""
    if not ipaddress.ip_address(address).is_loopback:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    return None


def stay_on(address: str) -> dict[str, str]:
    """Environment variables that keep gloo and NCCL on the loopback interface, if `address` is a loopback
    address.

    Variables that are set already are left alone. Empty for any other address.
    """
    name = loopback_interface(address)
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name else ()
    return {variable: os.environ.get(variable, str(name)) for variable in variables}


def own_address(host: str) -> str:
    """This machine's address on the way to `host`. Sends nothing."""
    family, *_, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


async def watch_processes(processes: Mapping[str, int], limit_s: float) -> None:
    """`Cluster.watch` for `processes`: name → pid."""
    opened: dict[str, psutil.Process] = {}
    for name, pid in processes.items():
        try:
            opened[name] = psutil.Process(pid)
        except psutil.NoSuchProcess:  # before anybody watched it
            raise _death(name) from None
    stopped = dict.fromkeys(processes, 0.0)
    while True:
        for name, process in opened.items():
            try:
                status = process.status()
            except psutil.NoSuchProcess:
                status = psutil.STATUS_DEAD
            if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                raise _death(name)
            stopped[name] = stopped[name] + _TICK_SECONDS if status == psutil.STATUS_STOPPED else 0.0
            if stopped[name] >= limit_s:
                process.resume()  # who waits for it could not be ended
                raise WorkerError(f"{name} has been stopped for {limit_s:g} s (--worker-health-limit).")
        await asyncio.sleep(_TICK_SECONDS)


def _death(name: str) -> WorkerError:
    return WorkerError(f"{name} has ended: its processes cannot go on.")
