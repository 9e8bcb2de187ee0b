"""Tests of ``shardinv.blocks``."""
