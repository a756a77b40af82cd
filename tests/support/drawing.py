"""Charts of tests are drawn in a helper process.

The library that draws them has threads, which a fork lacks: a forked doit (`forked.py`) would wait
for them for ever, once the test's own process had drawn a chart.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from typing import Any

import vl_convert

_ORIGINALS = {name: getattr(vl_convert, name) for name in ("vega_to_svg", "vegalite_to_svg")}


def draw_in_helper() -> None:
    """Draw charts of this process in another; forks of it draw their own."""
    for name in _ORIGINALS:
        setattr(vl_convert, name, partial(_submit, name))
    os.register_at_fork(after_in_child=_restore)


def _restore() -> None:
    for name, original in _ORIGINALS.items():
        setattr(vl_convert, name, original)


@cache
def _helper() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"))


def _submit(name: str, spec: dict[str, Any]) -> str:
    return _helper().submit(_draw, name, spec).result()


def _draw(name: str, spec: dict[str, Any]) -> str:
    return _ORIGINALS[name](spec)
