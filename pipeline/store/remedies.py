"""What to do about errors: features know the causes of those of torch and ExecuTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.moments import call_all
from pipeline.store.errors import describe_error


def explain_error(error: BaseException, root: Path) -> str:
    """Describe what ended an action in a line.

    Args:
        root: the workspace.
    """
    for explanation in call_all("explain_error", error, root):
        return str(explanation)
    return describe_error(error)


def add_remedy(text: str, error: BaseException | None = None) -> str:
    """Return the text of an error with its remedy, where one is known; the error itself helps."""
    for text_with_remedy in call_all("add_remedy", text, (), error):
        return str(text_with_remedy)
    return text


def range_remedy(operator: str, lowered: Sequence[int | None], keeps: bool) -> str:
    """Return what to do about a size that is lowered for a smaller range than its source takes.

    Args:
        operator: the one that narrowed it; "" where it is not known.
        lowered: the least and the greatest size; None is no limit.
        keeps: whether `keep_ranges` is set, which helps where convolutions narrow a size.
    """
    if not keeps and (not operator or "conv" in operator):
        return "`edge: {keep_ranges: true}` may keep them"
    least, greatest = lowered
    limits = f"min={least}" if greatest is None else f"min={least}, max={greatest}"
    return f"export it with torch.export.Dim(..., {limits}), or compute that with other operators"
