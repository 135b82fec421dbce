"""Is capture complete and are the sketches faithful, for this model and these rollouts?"""

from behaviortrace.doctor.examination import examine
from behaviortrace.doctor.subject import Subject, of_recipe, of_run

__all__ = ["Subject", "examine", "of_recipe", "of_run"]
