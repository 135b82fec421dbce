"""Causes: what a policy does not learn when rollouts are taken out of its training."""
