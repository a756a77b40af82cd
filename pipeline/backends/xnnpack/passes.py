"""XNNPACK's passes over a partition, without what they do in vain.

Each of the 17 passes ends by tracing its graph again, which copies it node by node, though most
changed nothing; all are checked before and after, and two export patterns whose operators few
graphs hold. The passes themselves are ExecuTorch's, and so is the rest of its preprocess function.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import Any, TypeAlias

from executorch.backends.xnnpack import xnnpack_preprocess
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from executorch.backends.xnnpack._passes.convert_to_sdpa import ConvertToSDPAPass
from executorch.backends.xnnpack._passes.convert_to_upsample_bilinear2d import (
    ConvertToUpsampleBilinear2d,
)
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.exir.pass_base import ExportPass, _ExportPassBase
from executorch.exir.pass_manager import ExportedProgramPassManager
from executorch.exir.passes.const_prop_pass import ConstPropPass
from executorch.exir.passes.dim_order_ops_registry import MemoryFormatOpsMap
from executorch.exir.passes.memory_format_ops_pass import DimOrderOpsRevertPass
from executorch.exir.program._program import _transform_with_pass_manager
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from pipeline.program.patching import digest_source, lowers_fast, replaced
from pipeline.program.traced import Traced

_log = logging.getLogger(__name__)

# What this module was written for: the digest of these texts of ExecuTorch's, and the releases
# whose patterns are below. tests/backends/test_xnnpack_passes.py holds it to what is installed.
KNOWN = "7b7a1b8df0c821748bec7e913b31c73f75b1ec6dfa3a3f8196733639b0e08b40"
SOURCES = (
    XNNPACKPassManager.transform,
    ExportedProgramPassManager.__call__,
    ExportedProgramPassManager.check,
    _ExportPassBase.call,
    _ExportPassBase.call_submodule,
    ExportPass.call_submodule,
    DimOrderOpsRevertPass.call_operator,
    ConstPropPass.call_operator,
    ConvertToSDPAPass.call,
    ConvertToUpsampleBilinear2d.call,
    ConvertToUpsampleBilinear2d.create_upsample_bilinear_2d,
)
RELEASES = {"executorch": "1.4.1", "torch": "2.13.0"}
# Operators that every pattern holds. A match of the other pass's patterns, which are this operator
# and no more, is left as it is.
SDPA = frozenset({"aten.any.dim", "dim_order_ops._clone_dim_order.default"})
BILINEAR = frozenset({"aten.upsample_bilinear2d.vec"})


@contextmanager
def fast_passes() -> Iterator[None]:
    """Run XNNPACK's passes by `FastPassManager` within the context, where this process may."""
    if not (lowers_fast.get() and _is_known()):
        yield
        return
    with replaced(xnnpack_preprocess, "XNNPACKPassManager", lambda original: FastPassManager):
        yield


@cache
def _is_known() -> bool:
    known = digest_source(*SOURCES) == KNOWN
    if not known:
        _log.warning("XNNPACK's passes are others than were known, and run as they are")
    return known


class FastPassManager(XNNPACKPassManager):
    """ExecuTorch's passes in its order. The program is checked once, when all have run."""

    def transform(self) -> ExportedProgram:
        program, traced = self.exported_program, Traced()
        with replaced(GraphModule, "print_readable", lambda original: _print_nothing):
            for kind in self.passes:
                own = _make_thrifty(kind)
                one = own(program) if issubclass(kind, XNNPACKPass) else own()
                one.traced = traced
                program = _transform_with_pass_manager(program, _Unchecked([one]))
        ExportedProgramPassManager().check(program)
        return program


def _print_nothing(module: GraphModule, *args: Any, **options: Any) -> str:
    """Stand in for `print_readable`, whose text goes to a debug log that is off."""
    return ""


class _Unchecked(ExportedProgramPassManager):
    def check(self, exported_program: ExportedProgram) -> None:
        """Check nothing: `FastPassManager` does, in the end."""


class _Thrifty(ExportPass):
    """A base that a pass gets between its own and `ExportPass`, whose `call` traces the graph."""

    traced: Traced
    changes: Callable[[GraphModule], bool]  # whether tracing itself can change a graph

    def call(self, graph_module: GraphModule) -> PassResult:
        if self.traced.holds(graph_module) and not self.changes(graph_module):
            return PassResult(graph_module, True)
        result = super().call(graph_module)
        self.traced.keep(result.graph_module)
        return result


@cache
def _make_thrifty(kind: type[ExportPass]) -> Any:
    """Make a subclass of a pass that traces no graph in vain, and looks for no pattern that can't
    be there."""
    overrides = _overrides(kind)
    changes = _CHANGES.get(kind, lambda module: overrides)
    matches = _MATCHES.get(kind) if _has_known_patterns() else None

    def call(self: Any, module: GraphModule) -> PassResult:
        vain = matches is not None and not matches(module)
        return (_Thrifty if vain else kind).call(self, module)

    facts = {"changes": staticmethod(changes), "call": call, "__module__": __name__}
    return type(kind.__name__, (kind, _Thrifty), facts)


@cache
def _has_known_patterns() -> bool:
    return all(version(name).partition("+")[0] == known for name, known in RELEASES.items())


def _overrides(kind: type[ExportPass]) -> bool:
    """Return whether a pass does more than `ExportPass` while it traces."""
    names = {name for each in (ExportPass, _ExportPassBase) for name in vars(each)}
    hooks = {name for name in names if not name.startswith("__")} - {"call", "_abc_impl"}
    return any(getattr(kind, name) is not getattr(ExportPass, name) for name in hooks)


def _has_dim_order(module: GraphModule) -> bool:
    return any(node.target in MemoryFormatOpsMap for node in module.graph.nodes)


def _has_constants(module: GraphModule) -> bool:
    """Return whether a call may compute with nothing but literals and attributes."""
    return any(n.op == "call_function" and not n.all_input_nodes for n in module.graph.nodes)


def find_operators(module: GraphModule) -> set[str]:
    """Return the names of the operators that a graph calls."""
    return {
        getattr(n.target, "__name__", "") for n in module.graph.nodes if n.op == "call_function"
    }


_Ask: TypeAlias = Callable[[GraphModule], bool]
# Whether a pattern that a pass looks for can be in a graph, and be changed there.
_MATCHES: Mapping[type[ExportPass], _Ask] = {
    ConvertToSDPAPass: lambda module: find_operators(module) >= SDPA,
    ConvertToUpsampleBilinear2d: lambda module: False,
}
# Whether tracing changes a graph, by what a pass does meanwhile.
_CHANGES: Mapping[type[ExportPass], _Ask] = {
    DimOrderOpsRevertPass: _has_dim_order,
    ConstPropPass: _has_constants,
}
