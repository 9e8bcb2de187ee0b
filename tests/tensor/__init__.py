"""Tests of ``shardinv.tensor``."""
