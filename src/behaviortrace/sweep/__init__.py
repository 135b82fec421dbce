"""Seeds x draws of one recipe: independent runs, merged into one table and one report.

Reading order: plan (which runs, and what each is called), standing (which of them are finished),
manifest (what ``sweep.json`` records), worker (one run, as a job of ``processes``), merge (their
tables and replicates), replicates (what these say together), controls (what each control leaves),
figures, tables and page (the report), stage (all of it); verify and export read what is there.

::

    DIR/
      sweep.json       recipe, seeds, draws, and every run with its state
      runs/NAME/       an ordinary run directory a seed, named by seed and content address
      results/         rows, replicates, controls, pitfalls, emergence, as Parquet and CSV
      report/index.html
      logs/NAME.log    what a run's process printed
      progress/        where the running ones stand
"""

from behaviortrace.sweep.manifest import RunEntry, SweepManifest
from behaviortrace.sweep.plan import Job, Plan, address, make_plan
from behaviortrace.sweep.stage import Sweep, sweep

__all__ = ["Job", "Plan", "RunEntry", "Sweep", "SweepManifest", "address", "make_plan", "sweep"]
