"""Tests of the ready-made problems, undistributed."""
