"""Measures a point, on all of its ranks."""
