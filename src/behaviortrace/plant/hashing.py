"""Numbers that depend on nothing but (seed, step, index): no random stream is drawn from."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def splitmix64(value: int) -> int:
    """One output of the SplitMix64 generator at state ``value``: a 64-bit integer.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def chance(seed: int, step: int, index: int) -> float:
    """A number in [0, 1) that depends on nothing but (seed, step, index)."""
    word = splitmix64(seed & _MASK)
    word = splitmix64(word ^ step)
    word = splitmix64(word ^ index)
    return (word >> 11) * 2.0**-53


def other_stream(seed: int) -> int:
    """A seed whose chances have nothing to do with those of ``seed``."""
    return splitmix64(~seed & _MASK)
