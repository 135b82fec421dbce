"""Plant a behaviour whose cause is known: behaviours, contamination, prompts, ground truth."""
