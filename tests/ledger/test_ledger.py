"""Booking, blocks and the table; no process and no message."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from shardinv.ledger import Entry, Ledger


def book(
    ledger: Ledger, operation: str, nbytes: int, issued: float = 0.0, waited: float = 0.0
) -> None:
    ledger.book(operation, bytes_sent=nbytes, seconds_issued=issued, seconds_waited=waited)


def words(line: str) -> str:
    return " ".join(line.split())


def test_calls_bytes_and_seconds_add_up_by_block_and_operation() -> None:
    ledger = Ledger()
    with ledger.block("denoiser"):
        book(ledger, "gather", 10, 0.5, 1.0)
        book(ledger, "gather", 20, 0.25, 2.0)
        book(ledger, "move", 1)
    book(ledger, "gather", 100)
    assert ledger.entries() == [
        Entry("denoiser", "gather", 2, 30, 0.75, 3.0),
        Entry("denoiser", "move", 1, 1, 0.0, 0.0),
        Entry("script", "gather", 1, 100, 0.0, 0.0),
    ]
    assert ledger.calls == 4
    assert ledger.bytes_sent == 131


def test_table_is_plain_data() -> None:
    ledger = Ledger()
    book(ledger, "all_reduce", 8, 0.125, 0.25)
    row = {
        "block": "script",
        "operation": "all_reduce",
        "calls": 1,
        "bytes_sent": 8,
        "seconds_issued": 0.125,
        "seconds_waited": 0.25,
    }
    assert ledger.table() == [row]
    assert json.loads(json.dumps(ledger.table())) == [row]
    assert ledger.table() == [asdict(entry) for entry in ledger.entries()]


def test_innermost_block_is_booked_and_the_outer_one_comes_back() -> None:
    ledger = Ledger()
    assert ledger.current_block == "script"
    with ledger.block("fidelity"):
        with ledger.block("physics"):
            assert ledger.current_block == "physics"
            book(ledger, "gather", 1)
        assert ledger.current_block == "fidelity"
        book(ledger, "all_reduce", 2)
    assert ledger.current_block == "script"
    assert [(entry.block, entry.bytes_sent) for entry in ledger.entries()] == [
        ("physics", 1),
        ("fidelity", 2),
    ]


def test_block_ends_with_an_exception_too() -> None:
    ledger = Ledger()
    with pytest.raises(KeyError), ledger.block("physics"):
        raise KeyError
    assert ledger.current_block == "script"


def test_reset_forgets_everything_but_the_current_block() -> None:
    ledger = Ledger()
    with ledger.block("denoiser"):
        book(ledger, "gather", 5)
        ledger.reset()
        assert (ledger.calls, ledger.bytes_sent, ledger.table()) == (0, 0, [])
        book(ledger, "gather", 7)
    assert [(entry.block, entry.bytes_sent) for entry in ledger.entries()] == [("denoiser", 7)]


def test_entries_are_in_order_of_first_use() -> None:
    ledger = Ledger()
    for operation in ("b", "a", "b", "c"):
        book(ledger, operation, 1)
    assert [entry.operation for entry in ledger.entries()] == ["b", "a", "c"]


def test_printed_table_is_aligned() -> None:
    ledger = Ledger()
    assert words(str(ledger)) == "block operation calls MB sent s issued s waited"
    with ledger.block("denoiser (backward)"):
        book(ledger, "all_reduce", 12_345_678, 0.5, 1.25)
    book(ledger, "move", 0)
    lines = str(ledger).splitlines()
    assert len(lines) == 3
    assert words(lines[1]) == "denoiser (backward) all_reduce 1 12.346 0.500 1.250"
    assert words(lines[2]) == "script move 1 0.000 0.000 0.000"
    assert len({len(line) for line in lines}) == 1  # numbers end in one column
    assert lines[1].index("all_reduce") == lines[2].index("move") == lines[0].index("operation")
