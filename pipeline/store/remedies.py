"""Remedies for errors; features know the causes of errors of torch and ExecuTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.moments import call_all
from pipeline.store.errors import describe_error


def explain_error(error: BaseException, root: Path) -> str:
    """Return one line that describes the error that ended an action.

    Args:
        root: the workspace.
    """
    for explanation in call_all("explain_error", error, root):
        return str(explanation)
    return describe_error(error)


def add_remedy(text: str, error: BaseException | None = None) -> str:
    """Return the text of an error with a remedy, if one is known; `error` helps to find it."""
    for text_with_remedy in call_all("add_remedy", text, (), error):
        return str(text_with_remedy)
    return text


def range_remedy(operator: str, lowered: Sequence[int | None], keeps: bool) -> str:
    """Return what to do about an input size that is lowered for a smaller range than its source's.

    Args:
        operator: the operator that narrowed the size, or "" if unknown.
        lowered: the smallest and the largest size; None means no limit.
        keeps: whether `keep_ranges` is set, which helps if convolutions narrow a size.
    """
    if not keeps and (not operator or "conv" in operator):
        return "`edge: {keep_ranges: true}` may keep them"
    least, greatest = lowered
    limits = f"min={least}" if greatest is None else f"min={least}, max={greatest}"
    return f"export it with torch.export.Dim(..., {limits}), or compute that with other operators"
