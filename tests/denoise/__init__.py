"""Tests of ``shardinv.denoise``."""
