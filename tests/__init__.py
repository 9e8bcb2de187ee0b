"""Tests of shardinv; the folders mirror ``src/shardinv``, and ``harness`` holds what they share."""
