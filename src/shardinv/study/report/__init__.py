"""The report of a study: one page that opens offline, figures, data and traces.

``collection`` reads what was measured; ``figures`` and ``tables`` describe what to show as plain
data (``charts``), which ``interactive`` turns into plotly's for the ``page`` and ``static`` into
files; ``write`` does all of it.
"""

from shardinv.study.report.collection import NoResults
from shardinv.study.report.write import write_report

__all__ = ["NoResults", "write_report"]
