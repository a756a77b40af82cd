"""Decides which operators the programs of an archive may call: only those that compute tensors.

torch looks operators up by name, as attributes of the module `torch`, and `torch.os` is one of
these, so names are checked here first. This module doesn't import torch.
"""

from __future__ import annotations

import re

from pipeline.program.size_expressions import words

_DUNDER = re.compile(r"__\w*__")
_OVERLOAD = re.compile(
    r"torch\.ops\.([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)"
)
_ATEN_DUNDERS = frozenset(
    f"__{place}{name}__"
    for place in ("", "i")
    for name in ("and", "or", "xor", "lshift", "rshift")
)
# Their operators reach files, other processes or memory outside tensors, or belong to compilers.
_CLOSED_NAMESPACES = words(
    "_c10d_functional _c10d_functional_autograd _dtensor _inductor_test _native _test c10d "
    "c10d_functional cplib debug_mode_ops debugprims fsdp inductor inductor_prims onnx "
    "onnx_symbolic prim profiler static_runtime streams symm_mem"
)
_CLOSED = frozenset({"aten.from_file", "aten.save", "aten._print", "aten.warn"})
_HIGHER_ORDER = words(
    "_export_tracepoint associative_scan auto_functionalized auto_functionalized_v2 cond "
    "control_deps flex_attention foreach_map hints_wrapper invoke_subgraph map_impl out_dtype scan "
    "strict_mode while_loop while_loop_stack_output with_effects wrap_with_autocast "
    "wrap_with_set_grad_enabled"
)
OTHER_OPERATORS = frozenset(
    [
        *(f"torch.ops.higher_order.{name}" for name in _HIGHER_ORDER),
        *(
            f"_operator.{name}"
            for name in words(
                "abs add and_ eq floordiv ge getitem gt le lshift lt mod mul ne neg not_ "
                "or_ pos pow rshift sub truediv xor"
            )
        ),
        *(f"math.{name}" for name in words("ceil floor pow sqrt trunc")),
        *(
            f"torch.{name}"
            for name in words(
                "sym_float sym_fresh_size sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum"
            )
        ),
        *(
            f"torch._sym_{name}"
            for name in words(
                "acos asin atan cos cosh exp log log2 sin sinh sqrt tan tanh"
            )
        ),
        *(
            f"torch._functorch.predispatch.{name}"
            for name in words(
                "_add_batch_dim _enter_dual_level _exit_dual_level _jvp_decrement_nesting "
                "_jvp_increment_nesting _make_dual _remove_batch_dim _unpack_dual _unwrap_for_grad "
                "_vmap_decrement_nesting _vmap_increment_nesting lazy_load_decompositions"
            )
        ),
    ]
)


def find_operator_fault(operator: str) -> str:
    """Return why a program may not call the operator of this name, or "" if it may."""
    if operator in OTHER_OPERATORS:
        return ""
    if operator.startswith("executorch.exir.dialects."):
        return "an edge operator; save the program before to_edge"
    match = _OVERLOAD.fullmatch(operator)
    if match is None:
        return "no operator"
    namespace, name, _ = match.groups()
    hidden = [part for part in match.groups() if _DUNDER.fullmatch(part)]
    if hidden and not (
        namespace == "aten" and hidden == [name] and name in _ATEN_DUNDERS
    ):
        return "no operator"
    if namespace in _CLOSED_NAMESPACES or f"{namespace}.{name}" in _CLOSED:
        return "which does more than to compute tensors"
    return ""
