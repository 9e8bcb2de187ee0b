"""Which ranks share a host."""

from __future__ import annotations

import os
import socket

import pytest

from shardinv import DistributedContext
from shardinv.exchange import host_of_ranks, hosts
from shardinv.exchange.hosts import host_identity
from tests.harness import WORLD_SIZES, WorkerPool


def check_one_host(ctx: DistributedContext) -> None:
    ctx.comm.hosts = None
    assert host_of_ranks(ctx.comm) == (0,) * ctx.world_size
    asked = ctx.comm.agreements
    assert host_of_ranks(ctx.comm) == (0,) * ctx.world_size
    assert ctx.comm.agreements == asked, "asked once"


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_ranks_of_one_machine_share_a_host(pool: WorkerPool, world_size: int) -> None:
    pool.run(check_one_host, world_size=world_size)


def check_names(ctx: DistributedContext, names: list[str]) -> tuple[int, ...]:
    ctx.comm.hosts = None
    before, hosts.host_identity = hosts.host_identity, lambda: (names[ctx.rank], "", "")
    try:
        return host_of_ranks(ctx.comm)
    finally:
        hosts.host_identity = before
        ctx.comm.hosts = None


def test_hosts_are_numbered_in_the_order_of_the_ranks(pool: WorkerPool) -> None:
    found = pool.run(check_names, ["z", "a", "z", "m"], world_size=4)
    assert found == [(0, 1, 0, 2)] * 4


def test_identity_says_name_boot_and_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_identity()[0] == socket.gethostname()
    assert host_identity() == host_identity()

    def nowhere(*_: object) -> str:
        raise OSError("no /proc here")

    monkeypatch.setattr(os, "readlink", nowhere)
    monkeypatch.setattr(hosts.Path, "read_text", nowhere)
    assert host_identity() == (socket.gethostname(), "", "")
