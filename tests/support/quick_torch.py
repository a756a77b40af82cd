"""Lowers and quantizes without work that torch repeats needlessly.

That work is two fifths of the time of lowering a small program, and nine tenths of the time of
quantizing one. The results are the same.
"""

from __future__ import annotations

from typing import Any

import torch  # noqa: F401 - so that no test sees its first import as what it tests

_replaced: list[tuple[Any, str, Any]] = []
_QUICK = ("_collect_all_valid_cia_ops", "_override_composite_implicit_decomp", "Callable")


def make_torch_quick() -> None:
    """Speed up four functions of torch in this process and its forks, as workers do.

    Each lowering calls three of them a few times; the fourth is for quantizing. Other patches are
    left out, for the sake of oracles.
    """
    from torchao.quantization.pt2e import utils

    from pipeline.features.speedups.patches import PATCHES
    from pipeline.features.speedups.quantizer_patterns import make_torch

    if _replaced:
        return
    for patch in PATCHES:
        if patch.name in _QUICK and patch.is_known:
            _replace(patch.owner, patch.name, patch.make(patch.original))
    # Not with `quantizing_patches`, which loads XNNPACK's modules: tests patch these as they load.
    _replace(utils, "torch", make_torch(utils.torch))


def make_torch_its_own() -> None:
    """Undo the patches in this process, so that it runs no code of the pipeline: for oracles."""
    for owner, name, original in _replaced:
        setattr(owner, name, original)


def _replace(owner: Any, name: str, replacement: Any) -> None:
    _replaced.append((owner, name, vars(owner)[name]))
    setattr(owner, name, replacement)
