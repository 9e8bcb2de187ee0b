"""Tests of the account itself; that every message is booked is tested in ``tests/exchange``."""
