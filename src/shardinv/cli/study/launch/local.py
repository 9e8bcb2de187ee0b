"""Points as processes of this machine, one point after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from shardinv.cli.launch import run_workers
from shardinv.cli.study.launch.launcher import Ended, words
from shardinv.cli.study.results import Results
from shardinv.study.plan.point import Point


class LocalLauncher:
    """Runs each point in fresh processes here.

    Parameters
    ----------
    results
        Where points leave what they gave, or their errors.
    """

    def __init__(self, results: Results) -> None:
        self._results = results

    def run(
        self, points: Sequence[Point], tell: Callable[[str], None]
    ) -> Generator[Ended, None, None]:
        """Run points one by one; see `Launcher`."""
        for point in points:
            tell(words(point))
            error = self._results.error(point)
            error.unlink(missing_ok=True)
            status = run_workers(
                "study-point",
                self._results.order(point),
                point.ranks,
                log=error,
                lighter="a smaller size or tile",
            )
            if status == 130:
                raise KeyboardInterrupt
            yield Ended(point, status == 0)
