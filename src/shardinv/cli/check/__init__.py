"""The command ``check``: what to verify before one measures.

``choosing`` finds the point, ``ranks`` is what each of its ranks does, ``lines`` shows what was
found, ``start`` puts them together. The checks themselves are in `shardinv.study.checks`.
"""

from shardinv.cli.check.start import check

__all__ = ["check"]
