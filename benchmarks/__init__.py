"""Measurements of shardinv beside what it replaces. Run by hand or by ``make bench``."""
