"""The performance figures, as ratios, on this machine."""
