"""Which network interface gloo should use where a run spans several hosts.

Gloo takes the address that the host's own name resolves to. Many systems list their name as
127.0.0.1 in ``/etc/hosts``, where no other host reaches them.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import warnings
from datetime import timedelta

from torch._C._distributed_c10d import Store

from shardinv.context.environment import Launch
from shardinv.exchange import wait_for_key

_VARIABLE = "GLOO_SOCKET_IFNAME"
_OUTSIDE = "outside"
_INSIDE = "inside"
_SIOCGIFADDR = 0x8915


def prefer_reachable_interface(store: Store, launch: Launch, timeout: timedelta) -> None:
    """Name gloo an interface that the other hosts reach, unless it finds one, or the user did.

    Every rank of a run must call it. It is the interface by which this host reaches the meeting
    point, or, on the host that has it, by which it reaches another one.

    Parameters
    ----------
    store
        Shared by the ranks.
    launch
        Where the ranks meet, and whether there are several hosts.
    timeout
        How long to wait for another host's address.
    """
    if launch.local_world_size >= launch.world_size:
        return
    address = _address_towards(launch.master_addr)
    if address is not None and not _is_loopback(address):
        store.set(_OUTSIDE, address)
    elif store.add(_INSIDE, 1) == launch.world_size:
        # Several launchers on one machine, which all reach the meeting point by its loopback.
        store.set(_OUTSIDE, "")
    if os.environ.get(_VARIABLE) or not _is_loopback(_address_of_name()):
        return
    if _is_loopback(address) and wait_for_key(
        store, _OUTSIDE, min(timeout.total_seconds(), 60.0), lambda: None
    ):
        outside = store.get(_OUTSIDE).decode()
        if not outside:
            return
        address = _address_towards(outside)
    interface = None if address is None or _is_loopback(address) else _interface_with(address)
    if interface is not None:
        os.environ[_VARIABLE] = interface
        return
    warnings.warn(
        f"the name of this host, {socket.gethostname()}, resolves to an address that no other host "
        f"reaches, and no interface was found that leads to {launch.master_addr}: set {_VARIABLE} "
        "to the name of one (see 'ip address'), or gloo will not connect",
        stacklevel=3,
    )


def _address_towards(host: str) -> str | None:
    """The address of this host that a packet to another would bear. None is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _address_of_name() -> str | None:
    """What gloo takes by itself: the first address of the host's name that it can listen on."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return str(address[0])
        except OSError:
            continue
    return None


def _is_loopback(address: str | None) -> bool:
    return address is None or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _interface_with(address: str) -> str | None:
    """The interface that has an IPv4 address."""
    try:
        from fcntl import ioctl
    except ImportError:  # not a Unix
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
