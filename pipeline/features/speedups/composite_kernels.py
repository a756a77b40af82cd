"""Caches the list of composite operators, and the Python kernels that decompositions give them.

For every lowered method, torch gives some 550 operators 20 kernels each, three times, and removes
them again; the kernels are the same each time (torch 2.13,
`torch.export.exported_program._override_composite_implicit_decomp`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial, wraps
from types import FunctionType
from typing import Any

import torch
from torch._export import utils as export_utils
from torch._subclasses.fake_impls import op_implementations_dict

from pipeline.program.patching import replaced

# The functions that collect composite operators.
COLLECTING = (
    export_utils._collect_all_valid_cia_ops,
    export_utils._collect_all_valid_cia_ops_for_namespace,
    export_utils._materialize_cpp_cia_ops,
)
_collected: dict[Any, Any] = {}  # the last collection, keyed by the registrations


def make_collect(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that collects composite operators only if more may have been registered.

    Each decomposition asks for them twice; the original goes through all operators of all
    libraries.
    """

    @wraps(original)
    def collect() -> Any:
        native = torch._C._dispatch_get_registrations_for_dispatch_key(
            "CompositeImplicitAutograd"
        )
        in_python = (
            len(torch.library._defs),
            len(torch.library._impls),
            len(sys.modules),
        )
        registered = frozenset(native), in_python
        if registered not in _collected:
            _collected.clear()
            # The original asks for all operators registered by C++ once per library of operators.
            with replaced(export_utils, "_materialize_cpp_cia_ops", cache):
                _collected[registered] = original()
        return _collected[registered]

    return collect


# The Python kernels of an operator without and with a decomposition, its rule for fake tensors, and
# the decomposition, which is held because it is recognized by identity.
_Kernels = tuple[dict[Any, Any], dict[Any, Any], Any, Any]


_remembered: dict[Hashable, _Kernels] = {}


def make_override(
    original: Callable[..., Any], remembered: dict[Hashable, _Kernels] = _remembered
) -> Callable[..., Any]:
    """Return a context manager that gives operators the kernels that they were given before.

    The kernels remembered for an operator are reused if its kernels are the same as then, it has no
    rule for fake tensors, and its decomposition is the same. The original handles the other
    operators.
    """

    @wraps(original)
    @contextmanager
    def override(decompositions: Mapping[Any, Any]) -> Iterator[None]:
        keys = {}
        recorded: dict[Any, _Kernels] = {}
        new = {}
        for op, decomposition in decompositions.items():
            keys[op] = (op, _identify(decomposition))
            kernels = remembered.get(keys[op])
            has_rule = op in op_implementations_dict
            if kernels is None or has_rule or kernels[0] != op.py_kernels:
                new[op] = decomposition
            else:
                recorded[op] = kernels
        before = {
            op: dict(op.py_kernels) for op in new if op not in op_implementations_dict
        }
        with original(new):
            for op, before_kernels in before.items():
                rule = op_implementations_dict[op]
                within = dict(op.py_kernels)
                remembered[keys[op]] = (before_kernels, within, rule, new[op])
            try:
                for op, (_, within, rule, _) in recorded.items():
                    _replace_kernels(op, within)
                    op_implementations_dict[op] = rule
                yield
            finally:
                for op, (before_kernels, *_) in recorded.items():
                    _replace_kernels(op, before_kernels)
                    del op_implementations_dict[op]

    return override


def _replace_kernels(operator: Any, kernels: Mapping[Any, Any]) -> None:
    operator.py_kernels.clear()
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()


def _identify(decomposition: Any) -> Hashable:
    """Return a key that distinguishes a decomposition from others.

    torch recreates the decompositions of preserved operators each time: a function with the same
    code, and the operator as its keyword argument.
    """
    if isinstance(decomposition, partial) and isinstance(
        decomposition.func, FunctionType
    ):
        of = decomposition.func
        if of.__closure__ is of.__defaults__ is of.__kwdefaults__ is None:
            return (
                id(of.__code__),
                decomposition.args,
                tuple(decomposition.keywords.items()),
            )
    return decomposition
