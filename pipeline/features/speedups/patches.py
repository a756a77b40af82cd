"""Replacements for slow functions of torch and ExecuTorch, in place while a worker lowers.

The replacements return what the originals return, so every byte that is built stays the same. Each
patch was written for one version of its function's source code, identified by digest. If a release
has other source code, the function isn't replaced, and the log says so once. The setting
`fast_lowering` switches the patches off.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from executorch.exir._serialize import _dataclass
from executorch.exir.backend import backend_api, backend_details
from executorch.exir.verification import verifier
from executorch.exir.verification.arg_validator import (
    EdgeOpArgValidator,
    RunHigherOrderOperatorError,
)
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter
from torch.fx.traceback import NodeSource, NodeSourceAction

from pipeline.features.speedups import (
    composite_kernels,
    dim_orders,
    fake_outputs,
    graph_building,
    graph_modules,
    idle_passes,
    module_names,
    partition_merging,
    pass_values,
    program_effects,
    signature_maps,
    sizes,
)
from pipeline.features.speedups.patch import Patch
from pipeline.program.patching import lowers_fast, replaced
from pipeline.run.imports import locating_modules

_log = logging.getLogger(__name__)
_Function = Callable[..., Any]


@contextmanager
def fast_lowering(patches: bool = True, kind: str = "compile") -> Iterator[None]:
    """Lower fast within the context.

    Backends use fast ways of their own and, with `patches`, the patches of this module apply. User
    code would see the patches, so processes that run user code must not apply them. `kind` is the
    kind of the action: `quantize` has patches of its own, in torchao.
    """
    token = lowers_fast.set(True)
    try:
        with ExitStack() as stack:
            if patches:
                stack.enter_context(signature_maps.counted_changes())
                stack.enter_context(locating_modules())  # some register operators
            for patch in _find_usable(kind) if patches else ():
                stack.enter_context(replaced(patch.owner, patch.name, patch.make))
            yield
    finally:
        lowers_fast.reset(token)


@cache
def _find_usable(kind: str) -> tuple[Patch, ...]:
    """Return the patches whose targets have the source code that the patches were written for."""
    patches = PATCHES
    if kind == "quantize":
        # Imported here: a compile doesn't import torchao.
        from pipeline.features.speedups.quantizing_patches import QUANTIZING_PATCHES

        patches += QUANTIZING_PATCHES
    usable = tuple(patch for patch in patches if patch.is_known)
    for patch in patches:
        if patch not in usable:
            _log.warning(
                "%s has unknown source code, and is not replaced", patch.target
            )
    return usable


# Provenance


def _make_node_source(original: _Function) -> _Function:
    """Return an `__init__` that shares a node's provenance records with its copies.

    Nothing changes the records. Their chain grows with each pass, and the original copies it for
    each node in each pass.
    """

    def initialize(
        self: NodeSource,
        node: torch.fx.Node | None,
        pass_name: str = "",
        action: NodeSourceAction | list[NodeSourceAction] | None = None,
    ) -> None:
        original(self, None, pass_name, action)
        if node:
            self.node_info = self.NodeInfo(node.name, str(node.target), id(node.graph))
            self.from_node = list(node.meta.get("from_node", ()))

    return initialize


# Kernels in Python


class _Plain(type):
    def __getitem__(cls, parameters: Any) -> type:
        return cls

    def __instancecheck__(cls, value: Any) -> bool:
        return callable(value)


class _Callable(metaclass=_Plain):
    """A stand-in for `Callable` that makes no object per annotation.

    `py_impl` defines an annotated function for each of the thousands of kernels that a
    decomposition registers.
    """


# Copies of partitions


def _make_lowering(original: _Function) -> _Function:
    """Return a lowering that shares constants with the copies of partitions, if the backend allows.

    ExecuTorch copies partitions because a backend may change them. A backend that doesn't write to
    the constants doesn't need copies of those, which would double the weights.
    """
    # Imported here: it loads the catalogue and its plugins.
    from pipeline.compile.preprocess.registry import find_entry

    # Since ExecuTorch 1.5, the class of a backend makes the copies.
    copying = backend_details if hasattr(backend_details, "copy") else backend_api

    def lower_all(backend_id: str, *args: Any, **given: Any) -> Any:
        entry = find_entry(backend_id)
        shares = entry is not None and entry.preprocessing.keeps_constants
        with replaced(copying, "copy", lambda module: _Sharing if shares else module):
            return original(backend_id, *args, **given)

    return lower_all


class _Sharing:
    """A stand-in for the module `copy` that shares the constants of a program."""

    @staticmethod
    def deepcopy(program: ExportedProgram) -> ExportedProgram:
        constants = (*program.state_dict.values(), *program.constants.values())
        tensors = {
            id(each): each for each in constants if isinstance(each, torch.Tensor)
        }
        return copy.deepcopy(program, tensors)


# Verification


class _Values(Interpreter):
    """An interpreter that takes the values of nodes from their metadata and computes none."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        meta = self.node.meta  # type: ignore[attr-defined]
        return (
            meta["val"]
            if "val" in meta
            else super().call_function(target, args, kwargs)
        )


class _DtypeValidator(EdgeOpArgValidator, _Values):
    """ExecuTorch's validator, except that it doesn't compute each operator on fake tensors."""


def _make_dtype_check(original: _Function) -> _Function:
    """Return a check of dtypes that uses the values that nodes already have.

    If something seems wrong, ExecuTorch's own check decides. It computes the values again, some 60
    times for two methods.
    """

    def check(module: GraphModule) -> None:
        validator = _DtypeValidator(module)
        try:
            validator.run(*verifier._get_inputs(module))
        except RunHigherOrderOperatorError:
            return  # as in the original: it checks a graph up to its first delegate
        except Exception:
            original(module)
        else:
            if validator.violating_ops:
                original(module)

    return check


PATCHES = (
    Patch(
        "torch.fx.graph_module:GraphModule.recompile",
        "43fbcbf4e1bbd67dbe7dbbe3f50610b539546dda9f37577f5ada4fbb8cba9d90",
        graph_modules.make_recompile,
    ),
    Patch(
        "torch.fx.graph_module:GraphModule.__reduce__",
        "375232b4edd9e9ca3ff0a3a1f0779bbe32eea5761942d803f54a9d94c0078ad2",
        graph_modules.make_reduce,
    ),
    Patch(
        "torch.fx.graph_module:GraphModule.__reduce_package__",
        "9393af7dd6cf197e6d65f412beb52fd2e1c0f7a39eb08c868c97739bd0c4a737",
        graph_modules.make_reduce,
    ),
    Patch(
        "torch.fx.graph_module:GraphModule.__str__",
        "12ce9ec04a87393d0635080d619e519494ae17105c40b82de0cd59d368049741",
        graph_modules.make_text,
    ),
    Patch(
        "torch.fx.traceback:NodeSource.__init__",
        "27958e35ba0c234234c2645ac82c074070cd4fcd4009daad209981468ecebbde",
        _make_node_source,
    ),
    Patch(
        "torch.export._trace:_aot_export_joint_with_descriptors",
        "adc0f32ed82dcb0c5749150ebf2671a13c68404507db7f71fcf76ae6af14d383",
        program_effects.make_tracing,
        texts=program_effects.SOURCES,
    ),
    *(
        Patch(
            f"torch.export.{module}:_collect_all_valid_cia_ops",
            "33f58c78bfcb4692799aef923a6a57fedf0b7aaefaa7860478496ceec57213f4",
            composite_kernels.make_collect,
            texts=composite_kernels.COLLECTING,
        )
        for module in ("exported_program", "decomp_utils")
    ),
    Patch(
        "torch.export.exported_program:_override_composite_implicit_decomp",
        "71eec6fa22398c555046045531b49faa205f9ea862804e0324f6cea2be77016a",
        composite_kernels.make_override,
    ),
    Patch(
        "torch._ops:Callable",
        "119b074e42369630508176e83685d649970b7c23208f776f8a3f9ae49e812da2",
        lambda original: _Callable,
        texts=(torch._ops.OperatorBase.py_impl,),
    ),
    Patch(
        "torch.fx.experimental.sym_node:SymNode.expr",
        "917f151435df1d67f615a28037bd3e9ca340393376836fbb97d112d477f6311d",
        sizes.make_expression,
    ),
    Patch(
        "torch.fx.experimental.sym_node:SymNode.maybe_as_int",
        "50b5657e9ab275af3da1d5accdb9c0ef1423aec8f0d165a18c4bf6f8c651722a",
        sizes.make_whole,
    ),
    Patch(
        "executorch.exir.sym_util:bound_sympy",
        "efe8a70841fc3deea65fbc67477042b9bb4c1a3a2285634723ed6b7380f067f4",
        sizes.make_bounds,
        texts=(sizes.BOUNDING,),
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode._get_output_info_for_cache_entry",
        "6a3dfc300bb360534996b9b3d0d60b15503a29d61962e2f1f49338187daf2d49",
        fake_outputs.make_info,
        texts=fake_outputs.SOURCES,
    ),
    Patch(
        "executorch.exir.tensor:dim_order_from_stride",
        "686bed4c498e8704cef449add5afa63997ea9ec6dc1ee2161fd7e353c8841e27",
        dim_orders.make_dim_order,
    ),
    *(
        Patch(
            f"torch.fx.experimental.sym_node:SymNode._{method}",
            "7e3424388842298941da8bd87bf53034a9f7626e76923bb72bf3b39910856261",
            sizes.make_arithmetic(method),
            texts=(sizes.ARITHMETIC,),
        )
        for method in sizes.METHODS
    ),
    *(
        Patch(
            f"torch.export.graph_signature:ExportGraphSignature.{name}",
            source,
            signature_maps.make_kept(list_name),
        )
        for list_name, sources in signature_maps.SOURCES.items()
        for name, source in sources.items()
    ),
    Patch(
        "torch.export._unlift:_assign_attr",
        "438e2bc44ba6b0893c5de531543bd26db1116d15d796d202b79aefb400f93b46",
        module_names.make_assign,
        texts=module_names.ASSIGNING,
    ),
    Patch(
        "executorch.exir.pass_base:_ExportPassBase.ExportTracer.create_arg",
        "7d4c11b65f98c82c0086bd811875da843b618fec0d22267f597886277a10ae93",
        module_names.make_argument,
        texts=module_names.TRACING,
    ),
    Patch(
        "executorch.exir.lowered_backend_module:legalize_graph",
        "4c971c2ad949517c0cf74cbc0874bf339770c6381e25bf15666496fbdc6b3066",
        graph_building.make_legalize,
        texts=graph_building.SORTING,
    ),
    Patch(
        "executorch.exir.backend.canonical_partitioners.group_partitioner:"
        "GroupBasedPartitioner._merge_partitions",
        "8b49b39627fc9b939f04f48d634cc85d1c6d7d57529cb976e58e70e9ca8b89eb",
        partition_merging.make_merge,
        texts=partition_merging.SOURCES,
    ),
    Patch(
        "executorch.exir.backend.canonical_partitioners.config_partitioner:"
        "ConfigerationBasedPartitioner.get_matched_nodes_from_configs",
        "6753a6886a084a6afc3844731d7c9fff86282c87980a99737ab7a9f07a47a9e5",
        partition_merging.make_matching,
        texts=partition_merging.MATCHING,
    ),
    Patch(
        "executorch.exir.backend.backend_api:lower_all_submodules_to_backend",
        "72b9c44a387502fcbb0b9c8759e2195f10d4aae010903b9c9437d658ecd302b2",
        _make_lowering,
    ),
    Patch(
        "executorch.exir._serialize._dataclass:get_type_hints",
        "99891c6cd2dc1917327138c704d1929120d786c729e885dab31f86353df2e67d",
        cache,
        texts=(_dataclass._DataclassEncoder.default,),
    ),
    Patch(
        "executorch.exir.program._program:_generate_edge_program",
        "66a49471f3e17f200f46f6e4ccb08fb5c37fe151f7da28a6bff22a6ef1237263",
        idle_passes.make_edge_program,
        texts=idle_passes.SOURCES,
    ),
    Patch(
        "executorch.exir.pass_base:_ExportPassBase._fx",
        "11196d6f42f4f2e70fd4b67f45d1440be86e22b68afab90aeadb8ae7fcb259e1",
        pass_values.make_call,
    ),
    Patch(
        "executorch.exir.program._program:EdgeProgramManager.to_executorch",
        "c93540deefb443b19b0fd5b2095bf300727e1f639c0a2b65cbf356f80a03432b",
        pass_values.make_keeping,
    ),
    Patch(
        "executorch.exir.verification.verifier:_check_tensor_args_matching_op_allowed_dtype",
        "2c0dc1f5e5a5857ce835bf47a5bc611af20e62010e54bc25316c445fc24d5404",
        _make_dtype_check,
    ),
)
