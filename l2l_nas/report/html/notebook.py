"""What a notebook shows of what a search has found: the best network, a table of those that were trained, the page."""

from __future__ import annotations

from urllib.parse import quote

from l2l_nas.report.charts.tables import finalist_table
from l2l_nas.report.html.frame import environment
from l2l_nas.report.results import Results
from l2l_nas.report.table import headline
from l2l_nas.space.architecture import format_choices


def render_result(results: Results, *, page: str) -> str:
    """A piece of HTML, without scripts; all text is escaped.

    Args:
        results: with what was found.
        page: a path to the page of the run, from where the notebook is; empty: there is none.
    """
    (best,) = results.leaders(1)
    table = finalist_table(results, winner=best.trial) if results.finalists else None
    return (
        environment()
        .get_template("notebook.html.j2")
        .render(
            headline=f"Best network, of trial {best.trial}: {headline(best)}",
            architecture="" if table else format_choices(best.architecture, is_whole=True),
            table=table,
            page=quote(page),
        )
    )
