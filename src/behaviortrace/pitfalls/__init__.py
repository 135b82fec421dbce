"""The paper's pitfalls P1 to P5, each shown on a run: one function a file, a table each.

P6 (one run is not enough) takes several runs, hence a sweep.
"""

from behaviortrace.pitfalls.cliff import cliff
from behaviortrace.pitfalls.constructed import constructed
from behaviortrace.pitfalls.demonstration import Demonstration
from behaviortrace.pitfalls.fluency import fluency
from behaviortrace.pitfalls.headroom import headroom
from behaviortrace.pitfalls.slice import slice_misses

__all__ = ["Demonstration", "cliff", "constructed", "fluency", "headroom", "slice_misses"]
