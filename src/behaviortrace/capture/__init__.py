"""Per-rollout gradients, taken inside the backward that trains, and their sketches."""

from behaviortrace.capture.replaying import Replay, replay
from behaviortrace.capture.sketch import CountSketch
from behaviortrace.capture.tracer import Tracer

__all__ = ["CountSketch", "Replay", "Tracer", "replay"]
