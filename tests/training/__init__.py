"""Tests of blocks that are trained."""
