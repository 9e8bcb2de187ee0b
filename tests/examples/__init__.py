"""Tests of the example scripts, run as a user runs them."""
