"""Tests of distributed stacks of operators, against DeepInverse's undistributed ones."""
