"""Lowering without what torch does again and again for nothing: two fifths of the time of a small
program. What it computes is the same."""

from __future__ import annotations

_QUICK = ("_collect_all_valid_cia_ops", "Callable")


def make_torch_quick() -> None:
    """Mend, in this process and its forks, two functions that each lowering calls a few times, as
    workers do; the others stay ExecuTorch's own, for oracles."""
    from pipeline.compile.patches import PATCHES

    for patch in PATCHES:
        if patch.name in _QUICK and patch.is_known:
            setattr(patch.owner, patch.name, patch.make(patch.original))
