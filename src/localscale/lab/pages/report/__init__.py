"""A self-contained HTML page about a finished run (extra: figures).

>>> from localscale.lab.pages.report import write_report
>>> write_report(Path("runs/dec"), control=Path("runs/aug"), out=Path("report.html"))  # doctest: +SKIP
"""

from localscale.lab.pages.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
