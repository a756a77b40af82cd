"""Runs XNNPACK's passes over a partition without their needless work.

Each of the 17 passes ends by tracing its graph again, which copies it node by node, though most
passes change nothing; the graph is checked before and after each, and two passes export patterns
whose operators few graphs contain. The passes themselves are ExecuTorch's, and so is the rest of
its preprocess function.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
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
from pipeline.store.releases import (
    describe_unknown,
    installed_release,
    installed_versions,
)

_log = logging.getLogger(__name__)

# The source code that this module was written for: its digest in the first release
# (`store.releases` has the digests of other releases), and the patterns below, which are the same
# in each release. tests/backends/test_xnnpack_passes.py checks both against the installed release.
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
# Operators that every pattern of a pass contains. The patterns of the other pass consist of this
# operator alone, which the pass replaces by itself.
SDPA = frozenset({"aten.any.dim", "dim_order_ops._clone_dim_order.default"})
BILINEAR = frozenset({"aten.upsample_bilinear2d.vec"})


@contextmanager
def fast_passes() -> Iterator[None]:
    """Run XNNPACK's passes with `FastPassManager` within the context, if this process may."""
    if not (lowers_fast.get() and _is_known()):
        yield
        return
    with replaced(
        xnnpack_preprocess, "XNNPACKPassManager", lambda original: FastPassManager
    ):
        yield


def known_digest() -> str:
    """Return the digest of `SOURCES` in the installed release."""
    return installed_release().digest_of(XNNPACKPassManager.__module__, KNOWN)


@cache
def _is_known() -> bool:
    is_known = digest_source(*SOURCES) == known_digest()
    if not is_known:
        _log.warning("XNNPACK's passes are unknown versions, and run unchanged")
    return is_known


class FastPassManager(XNNPACKPassManager):
    """Runs ExecuTorch's passes in its order, and checks the program once, at the end."""

    def transform(self) -> ExportedProgram:
        program, traced = self.exported_program, Traced()
        with replaced(GraphModule, "print_readable", lambda original: _print_nothing):
            for kind in self.passes:
                thrifty = _make_thrifty(kind)
                instance = (
                    thrifty(program) if issubclass(kind, XNNPACKPass) else thrifty()
                )
                instance.traced = traced
                program = _transform_with_pass_manager(program, _Unchecked([instance]))
        ExportedProgramPassManager().check(program)
        return program


def _print_nothing(module: GraphModule, *args: Any, **options: Any) -> str:
    """Replace `print_readable`, whose text goes to a debug log that is off."""
    return ""


class _Unchecked(ExportedProgramPassManager):
    def check(self, exported_program: ExportedProgram) -> None:
        """Check nothing: `FastPassManager` checks the program at the end."""


class _Thrifty(ExportPass):
    """A base class between a pass and `ExportPass`; its `call` traces a graph only if needed."""

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
    """Make a subclass of a pass that skips needless work.

    It doesn't trace a graph that tracing can't change, or search for a pattern that can't match.
    """
    overrides = _overrides(kind)
    changes = _CHANGES.get(kind, lambda module: overrides)
    matches = _MATCHES.get(kind) if _has_known_patterns() else None

    # A pass without its own `call` uses the one of `ExportPass`, which always traces.
    searches = kind.call is not ExportPass.call

    def call(self: Any, module: GraphModule) -> PassResult:
        can_match = matches is None or matches(module)
        return (kind if searches and can_match else _Thrifty).call(self, module)

    attributes = {
        "changes": staticmethod(changes),
        "call": call,
        "__module__": __name__,
    }
    return type(kind.__name__, (kind, _Thrifty), attributes)


@cache
def _has_known_patterns() -> bool:
    return not describe_unknown(installed_versions())


def _overrides(kind: type[ExportPass]) -> bool:
    """Return whether a pass does more than `ExportPass` while it traces."""
    names = {*vars(ExportPass), *vars(_ExportPassBase)}
    hooks = {name for name in names if not name.startswith("__")} - {
        "call",
        "_abc_impl",
    }
    return any(getattr(kind, name) is not getattr(ExportPass, name) for name in hooks)


def _has_dim_order(module: GraphModule) -> bool:
    return any(node.target in MemoryFormatOpsMap for node in module.graph.nodes)


def _has_constants(module: GraphModule) -> bool:
    """Return whether a call may compute from literals and attributes alone."""
    for node in module.graph.nodes:
        computes = node.op == "call_function"
        if computes and all(
            operand.op == "get_attr" for operand in node.all_input_nodes
        ):
            return True
    return False


def find_operators(module: GraphModule) -> set[str]:
    """Return the names of the operators that a graph calls."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    return {getattr(call.target, "__name__", "") for call in calls}


_Ask: TypeAlias = Callable[[GraphModule], bool]
# Whether a graph can contain a pattern of a pass, so that the pass changes it.
_MATCHES: Mapping[type[ExportPass], _Ask] = {
    ConvertToSDPAPass: lambda module: find_operators(module) >= SDPA,
    ConvertToUpsampleBilinear2d: lambda module: False,
}
# Whether a pass changes a graph while it traces.
_CHANGES: Mapping[type[ExportPass], _Ask] = {
    DimOrderOpsRevertPass: _has_dim_order,
    ConstPropPass: _has_constants,
}
