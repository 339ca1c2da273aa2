"""What a process and its children listen on."""

from __future__ import annotations

from ipaddress import ip_address

import psutil


def listening_addresses(pid: int) -> set[tuple[str, int]]:
    """TCP addresses and ports."""
    processes = {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    return {
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid in processes and connection.laddr
    }


def open_beyond_loopback(pid: int) -> set[int]:
    """TCP ports for other machines."""
    return {port for address, port in listening_addresses(pid) if not ip_address(address).is_loopback}
