"""How long ranks wait for each other before they take one for dead."""

from __future__ import annotations

from collections.abc import Sequence

from shardinv.study.checks.finding import Finding, by_rank

_ITERATIONS = 10
"""As many iterations a rank may be late before the others give up."""


def patience(timeouts: Sequence[float], variables: Sequence[str | None], slowest: float) -> Finding:
    """Whether the time-outs are the same everywhere and long enough.

    Parameters
    ----------
    timeouts
        The context's on each rank, in seconds.
    variables
        ``SHARDINV_TIMEOUT`` in each rank's environment.
    slowest
        Seconds of the slowest iteration.
    """
    name = "machine: time-outs"
    given = [value for value in variables if value is not None]
    source = f"SHARDINV_TIMEOUT={given[0]}" if given else "the default; SHARDINV_TIMEOUT is not set"
    message = f"{by_rank(timeouts, lambda t: f'{t:g} s')} ({source})"
    figures = {
        "seconds": list(timeouts),
        "SHARDINV_TIMEOUT": list(variables),
        "slowest_iteration_seconds": slowest,
    }
    if len(set(timeouts)) > 1:
        remedy = "set SHARDINV_TIMEOUT alike on all hosts (srun --export=ALL, mpirun -x)"
        return Finding(name, "warning", figures, f"ranks differ: {message}", remedy)
    wanted = _ITERATIONS * slowest
    if timeouts[0] < wanted:
        message += (
            f", and the slowest iteration took {slowest:.3g} s: a late rank is taken for dead"
        )
        remedy = f"SHARDINV_TIMEOUT={max(60, round(wanted))} or more"
        return Finding(name, "warning", figures, message, remedy)
    return Finding(name, "ok", figures, message)
