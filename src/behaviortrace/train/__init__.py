"""Training: load a policy, warm it up, drive a stock TRL trainer, sample from it."""
