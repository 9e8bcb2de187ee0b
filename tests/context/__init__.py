"""Tests of how ranks find each other, what a context tells, and how everything ends."""
