"""Lowering without what torch does again and again for nothing: two fifths of the time of a small
program. What it computes is the same."""

from __future__ import annotations

from typing import Any

_replaced: list[tuple[Any, str, Any]] = []
_QUICK = ("_collect_all_valid_cia_ops", "Callable")


def make_torch_quick() -> None:
    """Mend, in this process and its forks, two functions that each lowering calls a few times, as
    workers do; the others stay ExecuTorch's own, for oracles."""
    from pipeline.compile.patches import PATCHES

    for patch in PATCHES:
        if patch.name in _QUICK and patch.is_known:
            _replaced.append((patch.owner, patch.name, patch.original))
            setattr(patch.owner, patch.name, patch.make(patch.original))


def make_torch_its_own() -> None:
    """Undo it in this process, which thereby runs no code of this pipeline: for oracles."""
    for owner, name, original in _replaced:
        setattr(owner, name, original)
