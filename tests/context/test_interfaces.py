"""Which interface is named to gloo, without a network: what the system answers is made up."""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore

from shardinv.context import interfaces
from shardinv.context.environment import Launch

WAIT = timedelta(seconds=5)


@pytest.fixture(autouse=True)
def no_choice_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    # Set and deleted again: what a test leaves there is undone.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")


def pretend(
    monkeypatch: pytest.MonkeyPatch, name: str | None, towards: dict[str, str], owner: str | None
) -> None:
    """The address of the host's name, those towards others, and the interface that has them."""
    monkeypatch.setattr(interfaces, "_address_of_name", lambda: name)
    monkeypatch.setattr(interfaces, "_address_towards", lambda host: towards.get(host))
    monkeypatch.setattr(interfaces, "_interface_with", lambda address: owner)


def launch(rank: int = 0) -> Launch:
    return Launch("torchrun", rank, 2, 0, 1, "head", 29500)


def chosen() -> str:
    return os.environ["GLOO_SOCKET_IFNAME"]


def test_one_host_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "127.0.0.1", {"head": "10.0.0.1"}, "eth0")
    alone = Launch("torchrun", 0, 2, 0, 2, "head", 29500)
    interfaces.prefer_reachable_interface(HashStore(), alone, WAIT)
    assert chosen() == ""


def test_a_name_that_others_reach_is_left_to_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "10.0.0.1", {"head": "10.0.0.1"}, "eth0")
    interfaces.prefer_reachable_interface(HashStore(), launch(), WAIT)
    assert chosen() == ""


def test_the_user_s_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "127.0.0.1", {"head": "10.0.0.1"}, "eth0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    interfaces.prefer_reachable_interface(HashStore(), launch(), WAIT)
    assert chosen() == "ib0"


@pytest.mark.parametrize("name", ["127.0.0.1", "127.0.1.1", "::1", None])
def test_the_way_to_the_meeting_point_is_taken(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    pretend(monkeypatch, name, {"head": "10.0.0.2"}, "eth1")
    interfaces.prefer_reachable_interface(HashStore(), launch(rank=1), WAIT)
    assert chosen() == "eth1"


def test_the_host_of_the_meeting_point_takes_the_way_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # There, "head" is 127.0.0.1. The other rank's address comes a little later.
    pretend(monkeypatch, "127.0.0.1", {"head": "127.0.0.1", "10.0.0.2": "10.0.0.1"}, "eth0")
    store = HashStore()
    later = threading.Timer(0.1, lambda: store.set("outside", "10.0.0.2"))
    later.start()
    interfaces.prefer_reachable_interface(store, launch(), WAIT)
    later.join()
    assert chosen() == "eth0"


def test_several_launchers_on_one_machine_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "127.0.0.1", {"head": "127.0.0.1"}, "lo")
    store = HashStore()
    later = threading.Timer(
        0.1, interfaces.prefer_reachable_interface, (store, launch(rank=1), WAIT)
    )
    later.start()
    interfaces.prefer_reachable_interface(store, launch(), WAIT)
    later.join()
    assert chosen() == ""


@pytest.mark.parametrize(
    ("towards", "owner"), [({"head": "10.0.0.2"}, None), ({"head": "127.0.0.1"}, "lo"), ({}, None)]
)
def test_where_none_is_found_the_user_is_told(
    monkeypatch: pytest.MonkeyPatch, towards: dict[str, str], owner: str | None
) -> None:
    pretend(monkeypatch, "127.0.0.1", towards, owner)
    with pytest.warns(UserWarning, match="set GLOO_SOCKET_IFNAME to the name of one"):
        interfaces.prefer_reachable_interface(HashStore(), launch(), timedelta(seconds=0.1))
    assert chosen() == ""


def test_what_the_system_answers() -> None:
    assert interfaces._address_towards("127.0.0.1") == "127.0.0.1"
    loopback = interfaces._interface_with("127.0.0.1")
    assert loopback is None or loopback in [name for _, name in socket.if_nameindex()]
    assert interfaces._interface_with("203.0.113.7") is None


def test_a_name_that_resolves_to_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(address: str) -> Any:
        return lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", answer("203.0.113.7"))  # another's address
    assert interfaces._address_of_name() is None
    monkeypatch.setattr(socket, "getaddrinfo", answer("127.0.0.1"))
    assert interfaces._address_of_name() == "127.0.0.1"
