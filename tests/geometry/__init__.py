"""Tests of box arithmetic: no process and no torch, mostly against brute force on tiny images."""
