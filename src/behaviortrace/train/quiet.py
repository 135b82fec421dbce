"""Keep the libraries' banners and progress bars away from ours; errors still come through."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
from transformers.utils import logging as transformers_logging

_CHATTY = ("accelerate", "datasets", "trl", "torch.distributed", "httpx")


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block, third-party loggers below ERROR, bars and warnings are off; then restored.

    Exceptions and log records of level ERROR and above are untouched.
    """
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    dataset_bars = not datasets.are_progress_bars_disabled()
    levels = {name: logging.getLogger(name).level for name in _CHATTY}
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
        if dataset_bars:
            datasets.enable_progress_bars()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
