"""What the text of a cell means: a missing value, a number, true or false.

The rules are exact and the same for CSV and for text in Parquet. A number is digits with at most
one decimal point or comma, and an exponent: no separators of thousands, no units.
"""

from __future__ import annotations

import polars as pl

MISSING = ("", "nan", "na", "n/a", "#n/a", "<na>", "null", "none")
"""Spellings of a missing value, in any case: of numpy, R, Excel, pandas, SQL and Python."""

_NUMBER = r"^[+-]?(\d+([.,]\d*)?|[.,]\d+)(e[+-]?\d+)?$|^[+-]?inf(inity)?$"
_GROUPED = r"^[+-]?[1-9]\d{0,2},\d{3}$"  # 1,234: a decimal comma, or a thousand?
_WHOLE = r"^[+-]?(0|[1-9]\d*)$"
_PADDED = r"^[+-]?0\d"  # 007: a name rather than a number


def folded(text: pl.Series) -> pl.Series:
    """Text in lower case without surrounding space."""
    return text.str.strip_chars().str.to_lowercase()


def missing(values: pl.Series) -> pl.Series:
    """Where a value is missing, bool: null, NaN, or text that is one of ``MISSING``.

    Example:
        >>> missing(pl.Series(["0.5", "NA", "", "n/a "])).to_list()
        [False, True, True, True]
    """
    if values.dtype == pl.String:
        return folded(values).is_in(list(MISSING)) | values.is_null()
    if values.dtype.is_float():
        return values.is_null() | values.is_nan().fill_null(True)
    return values.is_null()


def truth(text: pl.Series) -> pl.Series:
    """1.0 for true, 0.0 for false, in any case; null for anything else."""
    return folded(text).replace_strict({"true": 1.0, "false": 0.0}, default=None)


def decimal(text: pl.Series) -> pl.Series:
    """Text as float64; null where it is no number. A decimal comma is as good as a point.

    Example:
        >>> decimal(pl.Series(["0.5", "0,5", "1e-3", "-inf", "1_000", "1.000,5"])).to_list()
        [0.5, 0.5, 0.001, -inf, None, None]
    """
    plain = folded(text)
    number = pl.when(plain.str.contains(_NUMBER)).then(plain.str.replace(",", ".", literal=True))
    return pl.select(number.cast(pl.Float64, strict=False)).to_series()


def decimal_mark(text: pl.Series, separator: str | None) -> str | None:
    """Why the numbers of a column cannot be read for sure; None where they can.

    Decimal points and commas in one column contradict each other. "1,234" may be a little more than
    one or a thousand; it is the former in a file separated by semicolons, which are what programs
    write beside decimal commas, or where another number of the column cannot be the latter.

    Args:
        text: the column.
        separator: of the file; None for Parquet.
    """
    plain = folded(text)
    with_comma = plain.filter(plain.str.contains(",", literal=True))
    if not len(with_comma):
        return None
    with_point = plain.filter(plain.str.contains(".", literal=True))
    if len(with_point):
        return f"mixes decimal points ({with_point[0]!r}) and commas ({with_comma[0]!r})"
    if separator != ";" and with_comma.str.contains(_GROUPED).all():
        return f"may have decimal commas or separators of thousands ({with_comma[0]!r})"
    return None


def ranks(text: pl.Series) -> pl.Series:
    """Dense rank of identities: numeric where every one is a number, else by their text.

    Numbers that are padded with zeros are names.
    """
    plain = folded(text)
    if not plain.str.contains(_PADDED).any():
        if plain.str.contains(_WHOLE).all():
            whole = plain.cast(pl.Int128, strict=False)
            if not whole.null_count():
                return whole.rank("dense")
        values = decimal(text)
        if not values.null_count() and decimal_mark(text, ";") is None:
            return values.rank("dense")
    return text.rank("dense")
