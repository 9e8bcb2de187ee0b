"""Tests of operators by space."""
