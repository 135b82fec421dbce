"""Published numbers and rows, read where they are present; tests that need them skip elsewhere."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "reference" / "data"


def published(name: str) -> pl.DataFrame:
    """One of the published tables; the calling test skips where it is absent."""
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"published data {name} is not here")
    return pl.read_csv(path)


def ground_truth_rows() -> pl.DataFrame:
    """The 16,000 rollouts of seed 2, of which the published file lists the boosted ones."""
    boosted = published("ground_truth_seed2.csv").select("step", "index", boosted=pl.lit(True))
    every = pl.DataFrame({"step": range(1000)}, schema={"step": pl.Int64}).join(
        pl.DataFrame({"index": range(16)}, schema={"index": pl.Int64}), how="cross"
    )
    return every.join(boosted, on=["step", "index"], how="left").with_columns(
        pl.col("boosted").fill_null(False)
    )
