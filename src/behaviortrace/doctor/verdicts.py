"""The lines of the examination, each with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from behaviortrace.records import Status, Verdict

_SLACK = 1e-9  # a share that should equal its threshold, after rounding


def verdicts(found: Mapping[str, Any]) -> list[Verdict]:
    """Judge what an examination found, section by section."""
    lines = [_coverage(found), _capture(found), _fidelity(found), _token_sums(found)]
    return lines if found["stored"] is None else [*lines, _stored(found)]


def _status(passed: bool) -> Status:
    return "pass" if passed else "fail"


def _coverage(found: Mapping[str, Any]) -> Verdict:
    cover, missed = found["coverage"], found["coverage"]["uncovered"]
    named = ", ".join(f"{m['name']} ({m['energy']:.2%})" for m in missed[:3])
    more = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
    said = "" if not cover["recorded"] else "; the run was told to go without it"
    return Verdict(
        "coverage",
        "Every trainable parameter's gradient is captured",
        _status(cover["energy"] >= cover["bar"] - _SLACK),
        f"{cover['energy']:.2%} of the squared gradient norm and {cover['parameters']:.2%} of the "
        f"parameters are covered" + (f"; left out: {named}{more}{said}" if missed else ""),
        {key: cover[key] for key in ("energy", "parameters", "worst_rollout")},
        {"coverage": cover["bar"]},
    )


def _capture(found: Mapping[str, Any]) -> Verdict:
    capture = found["capture"]
    norms = capture["norm_difference"]
    worst = max(capture["relative_difference"], norms or 0.0)
    of_norms = "" if norms is None else f", norms by {norms:.1e}"
    return Verdict(
        "capture",
        "Captured gradients are autograd's own",
        _status(worst <= capture["bar"]),
        f"sketches differ from those of exact gradients by at most "
        f"{capture['relative_difference']:.1e} of their norm{of_norms} (at most "
        f"{capture['bar']:g})",
        dict(capture),
        {"relative": capture["bar"]},
    )


def _fidelity(found: Mapping[str, Any]) -> Verdict:
    title, fit = "Sketched cosines are as near as theory says", found["certificate"]
    low, high = fit["range"]
    numbers = {key: fit[key] for key in ("rms_cosine_error", "expected", "range", "pairs")}
    if found["sketch"]["hash"] == "kronecker":
        return Verdict(
            "fidelity",
            title,
            "not run",
            f"rms error of {fit['pairs']} cosines {fit['rms_cosine_error']:.5f}; that of the hash "
            "'kronecker' depends on the gradients, so nothing is expected of it but what is "
            f"measured here (hashes that form gradients: {fit['expected']:.5f})",
            numbers,
        )
    return Verdict(
        "fidelity",
        title,
        _status(fit["passed"]),
        f"rms error of {fit['pairs']} cosines {fit['rms_cosine_error']:.5f}; theory expects "
        f"{fit['expected']:.5f}, in 95% of cases {low:.5f} to {high:.5f} (passes up to "
        f"{fit['bar']:.5f}); 1/sqrt(dim) is {fit['theory']:.5f}",
        numbers,
        {"rms_cosine_error": fit["bar"]},
    )


def _token_sums(found: Mapping[str, Any]) -> Verdict:
    title, sums = "Token scores add up to the same products", found["token_sums"]
    if "reason" in sums:
        return Verdict("token_sums", title, "not run", sums["reason"])
    as_theory = sums["deviations"] <= sums["deviations_bar"]
    passed = sums["relative_difference"] <= sums["bar"] and (
        as_theory or found["sketch"]["hash"] == "kronecker"
    )
    return Verdict(
        "token_sums",
        title,
        _status(passed),
        f"means of token scores, by forward passes alone, differ from exact products by at most "
        f"{sums['relative_difference']:.2%} of the largest (at most {sums['bar']:.0%}), from "
        f"sketched ones by {sums['deviations']:.1f} standard deviations of the sketch (at most "
        f"{sums['deviations_bar']:g}); rank correlation {sums['rank_correlation']:.3f}",
        dict(sums),
        {"relative": sums["bar"], "deviations": sums["deviations_bar"]},
    )


def _stored(found: Mapping[str, Any]) -> Verdict:
    title, stored = "Stored sketches can be taken again", found["stored"]
    if "reason" in stored:
        return Verdict("stored", title, "not run", stored["reason"])
    return Verdict(
        "stored",
        title,
        _status(stored["relative_difference"] <= stored["bar"]),
        f"{stored['rollouts']} sketches of step {stored['step']} differ from a replay under its "
        f"checkpoint by at most {stored['relative_difference']:.1e} of their norm (at most "
        f"{stored['bar']:g})",
        dict(stored),
        {"relative": stored["bar"]},
    )
