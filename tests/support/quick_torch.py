"""Lowering without what torch does again and again for nothing: two fifths of the time of a small
program. What it computes is the same."""

from __future__ import annotations

from typing import Any


def make_torch_quick() -> None:
    """Mend, in this process and its forks, two functions that each lowering calls a few times.

    Source: `torch._export.utils._collect_all_valid_cia_ops`, `torch._ops.OperatorBase.py_impl`.
    """
    import torch._ops
    from torch._export import utils
    from torch.export import decomp_utils, exported_program

    collect, look = utils._collect_all_valid_cia_ops, utils._materialize_cpp_cia_ops
    if collect.__module__ == __name__:
        return

    def collect_once() -> set[Any]:
        """Look once, and not for each of 39 namespaces, for operators that the dispatcher has and
        Python has not seen."""
        look()
        utils._materialize_cpp_cia_ops = lambda: None
        try:
            return collect()
        finally:
            utils._materialize_cpp_cia_ops = look

    collect_once.__wrapped__ = collect  # by which its text is known
    for module in (utils, decomp_utils, exported_program):
        module._collect_all_valid_cia_ops = collect_once
    torch._ops.Callable = _Callable


class _Subscripted(type):
    def __getitem__(cls, parameters: Any) -> type:
        return cls

    def __instancecheck__(cls, value: Any) -> bool:
        return callable(value)


class _Callable(metaclass=_Subscripted):
    """As `Callable`, and without an object for each annotation: a function within a function, which
    is defined for each of thousands of kernels, has two."""
