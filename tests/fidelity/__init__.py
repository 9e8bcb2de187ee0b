"""Tests of distributed fidelities, and of the solvers that use them."""
