"""The report: tables read the run, figures read the tables, the page shows both.

Reading order: text (what a model wrote is made safe to show), tables, style, figures, rollouts
(the highest-ranked ones), provenance, page (the template's one entry), stage, terminal.
"""

from behaviortrace.report.page import Page, render
from behaviortrace.report.stage import report
from behaviortrace.report.terminal import verdict_table

__all__ = ["Page", "render", "report", "verdict_table"]
