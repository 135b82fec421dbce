"""Values as JSON can hold them: undefined numbers become null, never 0 and never NaN."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from behaviortrace.errors import BehaviorTraceError


def jsonable(value: Any, where: str = "value") -> Any:
    """The value in plain JSON types.

    NumPy scalars and arrays become numbers and lists, dataclasses become mappings, tuples lists,
    keys strings; NaN and infinities become None.

    Args:
        value: what to convert.
        where: the name to use in an error, such as "results/summary".

    Raises:
        BehaviorTraceError: something in it has no JSON form.

    Example:
        >>> jsonable({"auc": float("nan"), 3: np.float32(0.5)})
        {'auc': None, '3': 0.5}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return jsonable(value.item(), where)
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist(), where)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: jsonable(getattr(value, f.name), f"{where}.{f.name}") for f in fields}
    if isinstance(value, Mapping):
        return {_key(k, where): jsonable(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise BehaviorTraceError(
        f"{where} is a {type(value).__name__}, which JSON cannot hold; convert it first"
    )


def _key(key: Any, where: str) -> str:
    if isinstance(key, np.generic):
        key = key.item()
    if isinstance(key, str):
        return key
    if isinstance(key, int | float) and not isinstance(key, bool):
        return str(key)
    raise BehaviorTraceError(
        f"{where} has the key {key!r}, which is neither a string nor a number; convert it first"
    )
