"""The report of a study: one page that opens offline, figures, data and traces.

``figures`` and ``tables`` describe what to show as plain data (``charts``), which ``interactive``
turns into plotly's for the ``page`` and ``static`` into files; ``write`` does all of it. It needs
the extra "study".
"""

from shardinv.study.report.write import write_report

__all__ = ["write_report"]
