"""Registers the operators that programs call, by loading the libraries that define them.

torch knows an operator once the module or shared library that defines it is loaded. Libraries in
ExecuTorch's wheel and in torchao are looked up in a fixed table when a program names one of their
operators. Loading a team's library runs its code, so the workspace must name such libraries
explicitly (`pipeline/features/operators/`). Libraries that have kernels also register them with
ExecuTorch's runtime.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.moments import call_all
from pipeline.store.errors import PipelineError

_MOST_CHARACTERS = 300  # of the message of a failed import
_LLM = "executorch.extension.llm"
# The modules that define the operators of each namespace, in the order in which they are tried.
# `executorch.backends.cadence.aot.ops_registrations` is left out: it adds overloads to ATen's
# operators, which affect everything that the process lowers afterwards. A workspace can name it.
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "ao": ("torchao.prototype.mx_formats.kernels",),
    "blocksparse": ("torchao.sparsity.blocksparse",),
    "channels_last": ("executorch.backends.transforms.channels_last_ops",),
    "coreml": ("executorch.examples.models.llama.source_transformation.sdpa",),
    "cortex_m": ("executorch.backends.cortex_m.ops.operators",),
    "dim_order_ops": ("executorch.exir.passes.dim_order_ops_registry",),
    "et_copy": ("executorch.exir.passes._device_copy_ops_registry",),
    "et_vk": ("executorch.backends.vulkan.custom_ops_lib",),
    "executorch": (f"{_LLM}.custom_ops.custom_ops",),
    "executorch_cuda": ("executorch.backends.cuda.quantize_op_dispatch._library",),
    "executorch_devtools": (
        "executorch.devtools.intermediate_output_tap.custom_ops_lib",
    ),
    "executorch_prim": ("executorch.exir.passes.executorch_prim_ops_registry",),
    "float8_sparse": ("torchao.quantization",),
    "llama": (f"{_LLM}.custom_ops.custom_ops", f"{_LLM}.custom_ops.op_fallback"),
    "metal": (
        "executorch.backends.apple.metal.ops.gated_delta_rule",
        "executorch.backends.apple.metal.ops.gather_qmv",
    ),
    "mlx": (
        "executorch.backends.mlx.custom_ops",
        *(
            f"executorch.backends.mlx.custom_kernel_ops.{name}"
            for name in ("gated_delta_rule", "tq4_compress", "tq_dequant", "tq_norm")
        ),
    ),
    "preprocess": (f"{_LLM}.custom_ops.op_tile_crop_aot",),
    "quant": ("torchao.prototype.quantization.codebook_coreml.codebook_ops",),
    "quant_fusion": ("executorch.exir.passes._quant_patterns_and_replacements",),
    "quant_logger": ("torchao.prototype.quant_logger.quant_logger",),
    "quantized_decomposed": (
        "executorch.kernels.quantized",
        "torch.ao.quantization.fx._decomposed",
    ),
    "torchao": (
        "torchao.quantization.quant_primitives",
        "torchao.ops",
        f"{_LLM}.export.int4",
        f"{_LLM}.export.gguf",
        f"{_LLM}.export.nvfp4",
        "torchao.prototype.spinquant.hadamard_utils",
        "torchao.quantization.pt2e.reference_representation_rewrite",
    ),
    "tosa": ("executorch.backends.arm.tosa.dialect.ops_registration",),
    "tosa_mxfp": (
        "executorch.backends.arm.ao_ext.ops.mxfp_conv2d_op",
        "executorch.backends.arm.ao_ext.ops.mxfp_linear_op",
    ),
}
# Libraries that no build needs by default, so their versions are in no cache key. A workspace must
# name them in `operators`.
ELSEWHERE: Mapping[str, str] = {
    "torchvision": "torchvision",
    "transformers": "transformers.integrations.moe",
    "transformers_msa": "transformers.integrations.msa_attention",
}
# Libraries that lowering needs for every program: they define out variants of quantized operators,
# and operators that exir inserts.
_OF_LOWERING = (
    *LIBRARIES["quantized_decomposed"],
    LIBRARIES["torchao"][0],
    *LIBRARIES["quant_fusion"],
)
# Namespaces of torch's, torchao's and ExecuTorch's operators; all others are custom.
OWN_NAMESPACES = frozenset(LIBRARIES) | {"aten", "prims", "quantized"}
REMEDY = (
    "name the module or library that registers it in `operators`: of the config, of "
    "[tool.pte-pipeline] in pyproject.toml, or of load_package (docs/guides/configs.md#operators)"
)


_REGISTERED_BY: dict[
    str, str
] = {}  # the library whose loading registered each operator


@contextmanager
def noting_operators(library: str) -> Iterator[None]:
    """Record that a library registered the operators that appear within the context."""
    import torch

    before = set(torch._C._dispatch_get_all_op_names())
    yield
    for name in set(torch._C._dispatch_get_all_op_names()) - before:
        _REGISTERED_BY.setdefault(name, library)


def load_libraries(references: Sequence[str], root: Path) -> None:
    """Load a team's operator libraries, in order.

    They can't be unloaded: for the rest of the process, torch knows their operators and
    ExecuTorch's runtime their kernels. A module in the workspace at `root` takes precedence over an
    installed module of the same name.

    Raises:
        PipelineError: a library can't be loaded, or no feature of this installation loads any.
    """
    if references and not list(call_all("load_libraries", references, root)):
        raise PipelineError('operators: this installation has no feature "operators"')


def find_library(operator: str) -> str:
    """Return the library of an operator, whose name is as in a plan: `llama::update_cache.out`.

    This is the library whose loading registered the operator, else the first in the table for its
    namespace, else "".
    """
    namespace = operator.partition("::")[0]
    libraries = LIBRARIES.get(namespace, ("",))
    return _REGISTERED_BY.get(operator, libraries[0])


def likely_library(name: str) -> str:
    """Return the module that likely registers an operator (`llama.update_cache.default`), or "".

    Only the namespace is considered.
    """
    namespace = name.partition(".")[0]
    if namespace in LIBRARIES:
        return LIBRARIES[namespace][0]
    return ELSEWHERE.get(namespace, "")


def register_for_lowering() -> None:
    """Register the operators that lowering itself needs."""
    for module in _OF_LOWERING:
        importlib.import_module(module)


def register_operators(
    names: Iterable[str], is_known: Callable[[str], bool] | None = None
) -> dict[str, str]:
    """Load the installed libraries of operators that aren't known yet.

    Args:
        names: operators with their overloads, such as `llama.update_cache.default`.
        is_known: returns whether an operator is known; by default, whether torch knows it.

    Returns:
        For each operator that is still missing, the import errors of the libraries that should
        define it, or "" if there are none.
    """
    is_known = is_known or is_registered
    missing = {}
    for name in dict.fromkeys(names):
        reasons = []
        for module in LIBRARIES.get(name.partition(".")[0], ()):
            if is_known(name):
                break
            error = _import(module)
            if error:
                reasons.append(f"{module} cannot be imported ({error})")
        if not is_known(name):
            missing[name] = "; ".join(reasons)
    return missing


@cache
def _import(module: str) -> str:
    """Import a module, and return its error in one line, or "".

    Errors are cached, since Python runs a failed module again on each import.
    """
    try:
        with noting_operators(module):
            importlib.import_module(module)
    except Exception as error:
        words = f"{type(error).__name__}: {error}".split()
        return " ".join(words)[:_MOST_CHARACTERS]
    return ""


def is_registered(name: str) -> bool:
    """Return whether torch knows an operator such as `aten.add.Tensor`.

    The default overload may be left out, as in a package's plan: `aten.relu`.
    """
    import torch

    namespace, _, operator_and_overload = name.partition(".")
    operator, _, overload = operator_and_overload.partition(".")
    if overload == "default":
        overload = ""
    try:  # not through `torch.ops`, which would cache the overloads known so far
        torch._C._get_schema(f"{namespace}::{operator}", overload)
    except (RuntimeError, TypeError):  # no such operator, or not a valid name
        return False
    return True


def find_operators(document: Any) -> Iterator[str]:
    """Yield the operators in an archive's program as `<namespace>.<name>.<overload>`.

    An operator may be yielded more than once. Source: `schema.Node.target` and
    `schema.Argument.as_operator`.
    """
    if isinstance(document, list):
        for element in document:
            yield from find_operators(element)
        return
    if not isinstance(document, dict):
        return
    for key, value in document.items():
        if key in ("target", "as_operator") and isinstance(value, str):
            if value.startswith(_PREFIX) and value.count(".") == _DOTS:
                yield value.removeprefix(_PREFIX)
        elif isinstance(value, (dict, list)):
            yield from find_operators(value)


_PREFIX, _DOTS = "torch.ops.", 4
