"""Lowering without what torch does 39 times for nothing: a third of the time of a small program."""

from __future__ import annotations


def collect_operators_once() -> None:
    """Let torch look once, not for each namespace, for operators that its dispatcher has and Python
    has not seen, whenever it collects them all. What it finds is the same.

    Source: `torch._export.utils._collect_all_valid_cia_ops`, of which each lowering makes a few
    calls.
    """
    from torch._export import utils
    from torch.export import decomp_utils, exported_program

    collect, look = utils._collect_all_valid_cia_ops, utils._materialize_cpp_cia_ops
    if collect.__module__ == __name__:
        return

    def collect_once() -> set[object]:
        look()
        utils._materialize_cpp_cia_ops = lambda: None
        try:
            return collect()
        finally:
            utils._materialize_cpp_cia_ops = look

    for module in (utils, decomp_utils, exported_program):
        module._collect_all_valid_cia_ops = collect_once
