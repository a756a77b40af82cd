"""Register the operators that programs call, from installed libraries, when a program names them.

torch knows an operator once the module or the shared library that defines it is loaded. Libraries
of ExecuTorch's wheel and of torchao are loaded here by the operators' names, from a fixed table;
a team's own are named by the workspace (`pipeline/features/operators/`), since loading one runs its
code. Libraries register kernels with ExecuTorch's runtime too, where they have some.
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

_MOST_CHARACTERS = 300  # of an import's error
_LLM = "executorch.extension.llm"
# By namespace, the modules that define its operators, in the order in which they are tried.
# `executorch.backends.cadence.aot.ops_registrations` is left out: it adds overloads to ATen's
# operators, for everything that its process lowers afterwards. A workspace can name it.
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
# Libraries that no build needs, and whose versions are in no key: `operators` must name them.
ELSEWHERE: Mapping[str, str] = {
    "torchvision": "torchvision",
    "transformers": "transformers.integrations.moe",
    "transformers_msa": "transformers.integrations.msa_attention",
}
# Libraries that lowering needs for every program: out variants of quantized operators, and
# operators that exir itself inserts.
_OF_LOWERING = (
    *LIBRARIES["quantized_decomposed"],
    LIBRARIES["torchao"][0],
    *LIBRARIES["quant_fusion"],
)
# Namespaces of torch's and ExecuTorch's operators; all others are custom.
OWN_NAMESPACES = frozenset(LIBRARIES) | {"aten", "prims", "quantized"}
REMEDY = (
    "name the module or library that registers it in `operators`: of the config, of "
    "[tool.pte-pipeline] in pyproject.toml, or of load_package (docs/guides/configs.md#operators)"
)


_REGISTERED_BY: dict[
    str, str
] = {}  # operators, by the library whose loading registered them


@contextmanager
def noting_operators(library: str) -> Iterator[None]:
    """Note the operators that are registered within the context as those of a library."""
    import torch

    before = set(torch._C._dispatch_get_all_op_names())
    yield
    for name in set(torch._C._dispatch_get_all_op_names()) - before:
        _REGISTERED_BY.setdefault(name, library)


def load_libraries(references: Sequence[str], root: Path) -> None:
    """Load libraries of operators of a team in their order, for good: torch knows their operators
    while this process lives, and ExecuTorch's runtime their kernels. A module of the workspace at
    `root` comes before an installed one of its name.

    Raises:
        PipelineError: one can't be loaded, or no feature of this installation loads any.
    """
    if references and not list(call_all("load_libraries", references, root)):
        raise PipelineError('operators: this installation has no feature "operators"')


def find_library(operator: str) -> str:
    """Return the library of an operator as a plan has it, `llama::update_cache.out`.

    That is the library whose loading registered it, else the one in the table, else "".
    """
    namespace = operator.partition("::")[0]
    libraries = LIBRARIES.get(namespace, ("",))
    return _REGISTERED_BY.get(operator, libraries[0])


def likely_library(name: str) -> str:
    """Return the module that registers an operator, as `llama.update_cache.default`, by its
    namespace alone, or ""."""
    namespace = name.partition(".")[0]
    if namespace in LIBRARIES:
        return LIBRARIES[namespace][0]
    return ELSEWHERE.get(namespace, "")


def register_for_lowering() -> None:
    """Register the operators that lowering itself asks for."""
    for module in _OF_LOWERING:
        importlib.import_module(module)


def register_operators(
    names: Iterable[str], is_known: Callable[[str], bool] | None = None
) -> dict[str, str]:
    """Load the installed libraries of operators that are not known yet.

    Args:
        names: operators with their overloads, as `llama.update_cache.default`.
        is_known: tells whether one is known, by default to torch.

    Returns:
        The operators that are still missing, by name, with the error of the library that should
        define them, or "" where no installed library does.
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
    """Import a module; return its error in a line, or "".

    Errors are cached, since Python runs a module that failed anew at each import.
    """
    try:
        with noting_operators(module):
            importlib.import_module(module)
    except Exception as error:
        words = f"{type(error).__name__}: {error}".split()
        return " ".join(words)[:_MOST_CHARACTERS]
    return ""


def is_registered(name: str) -> bool:
    """Return whether torch knows an operator, as `aten.add.Tensor`, or `aten.relu` without an
    overload, as a plan of a package has it."""
    import torch

    namespace, _, operator_and_overload = name.partition(".")
    operator, _, overload = operator_and_overload.partition(".")
    if overload == "default":
        overload = ""
    try:  # not by `torch.ops`, which caches the overloads that there are by now
        torch._C._get_schema(f"{namespace}::{operator}", overload)
    except (RuntimeError, TypeError):  # no such operator, or no text that names one
        return False
    return True


def find_operators(document: Any) -> Iterator[str]:
    """Yield the operators that an archive's program calls, `<namespace>.<name>.<overload>`, some
    more than once. Source: `schema.Node.target` and `schema.Argument.as_operator`."""
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
