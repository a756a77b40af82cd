"""Quantization for OpenVINO through NNCF: executorch/backends/openvino/quantizer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    field_validator,
)

from pipeline.backends.options import ModuleName, NoOptions, OneOf, Options, rule
from pipeline.backends.quantize_options import LeftAlone, MixedQuantize, Static
from pipeline.program.module_paths import innermost_module
from pipeline.store.errors import PipelineError

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

# The values of the members of executorch's QuantizationMode.
OpenvinoMode = Literal[
    "int8_sym", "int8_mixed", "int8_transformer",
    "int8wo_sym", "int8wo_asym", "int4wo_sym", "int4wo_asym",
]  # fmt: skip


def _for_modes(prefix: str, kind: str) -> AfterValidator:
    def check(value: Any, info: ValidationInfo) -> Any:
        mode = info.data.get("mode")
        weight_only = mode is not None and "wo" in mode
        if mode is not None and not (
            mode.startswith(prefix) and weight_only == ("wo" in kind)
        ):
            raise rule(f"which mode {mode} does not have; {kind} do")
        return value

    return AfterValidator(check)


_OBSERVING = _for_modes("int8", "int8_sym, int8_mixed and int8_transformer")
_WEIGHT_ONLY_INT4 = _for_modes("int4wo", "int4wo_sym and int4wo_asym")


class OpenvinoQuantize(MixedQuantize):
    """Options of `OpenVINOQuantizer`, and of `quantize_pt2e` and `compress_pt2e` in NNCF.

    Weights and activations are int8; in modes with `wo`, only weights are quantized, to int8 or
    int4.
    """

    # NNCF has no option that can differ within a method.
    scheme: ClassVar[type[Options]] = NoOptions

    quantizer: Literal["openvino"]
    dynamic: Static = False
    mode: OpenvinoMode = "int8_sym"
    """int8_sym quantizes weights and activations symmetrically; int8_mixed quantizes weights
    symmetrically and activations asymmetrically; int8_transformer uses the
    transformer settings of NNCF, OpenVINO's quantization library; modes that begin with int8wo_ or
    int4wo_ quantize only weights."""
    smooth_quant: Annotated[bool, _OBSERVING] = False
    """Scale down activations with large outliers, and scale up the weights to match (SmoothQuant).
    Not available in weight-only modes."""
    fast_bias_correction: Annotated[bool, _OBSERVING] = True
    """Correct biases with a quick estimate. If false, the model is run again for every layer, which
    is slower but more accurate. Not available in weight-only modes."""
    subset_size: Annotated[int, _OBSERVING] = Field(300, ge=1)
    """The maximum number of calibration inputs that NNCF observes. Not available in weight-only
    modes."""
    group_size: Annotated[int, _WEIGHT_ONLY_INT4] = Field(128, ge=-1)
    """The number of weights in a channel that share a scale; -1 means all. Available only in int4wo
    modes."""
    all_layers: Annotated[bool, _WEIGHT_ONLY_INT4] = False
    """Also quantize embeddings and the last layer to int4, instead of int8. Available only in
    int4wo modes."""
    awq: Annotated[bool, _WEIGHT_ONLY_INT4] = False
    """First scale weights according to the magnitude of the activations that they multiply (AWQ).
    Available only in int4wo modes."""
    scale_estimation: Annotated[bool, _WEIGHT_ONLY_INT4] = False
    """Choose the scales that best preserve each layer's outputs on calibration inputs. Available
    only in int4wo modes."""

    modules: dict[ModuleName, LeftAlone] = Field({})
    "Modules to leave unquantized, by qualified name, each with the value `none`."
    operators: dict[Annotated[str, OneOf("openvino_operators")], LeftAlone] = Field({})
    "Kinds of operators to leave unquantized, each with the value `none`."

    @field_validator("modules", "operators")
    @classmethod
    def _is_left_alone(
        cls, overrides: dict[str, Any], info: ValidationInfo
    ) -> dict[str, Any]:
        if overrides and info.data.get("smooth_quant"):
            raise rule(
                "can't be combined with smooth_quant, which also changes what they leave out"
            )
        return overrides

    @property
    def weight_only(self) -> bool:
        return "wo" in self.mode

    @property
    def calibrates(self) -> bool:
        return not self.weight_only or self.scale_estimation


def _ignored(module: GraphModule, config: OpenvinoQuantize) -> dict[str, Any]:
    """Return the `ignored_scope` that NNCF must not quantize, or an empty dict if there is none.

    The scope isn't validated, since NNCF can't find operators that it has already fused, such as
    batch norms.
    """
    import nncf

    calls = (node for node in module.graph.nodes if node.op == "call_function")
    names = [node.name for node in calls if config.scheme_of(node) is None]
    return (
        {"ignored_scope": nncf.IgnoredScope(names=names, validate=False)}
        if names
        else {}
    )


def apply_quantizer(
    module: GraphModule, config: OpenvinoQuantize, batches: Iterable[tuple[Any, ...]]
) -> GraphModule:
    """Quantize through NNCF's own flow: OpenVINO's frontend rejects the output of `convert_pt2e`.

    Raises:
        PipelineError: the method has control flow, or computes with its dynamic sizes while it is
            being observed.
    """
    os.environ.setdefault("NNCF_CI", "1")  # or NNCF sends usage data to its maker
    import nncf
    import torch
    from executorch.backends.openvino import quantizer as upstream
    from nncf.experimental.torch.fx import compress_pt2e

    mode, ignored = upstream.QuantizationMode(config.mode), _ignored(module, config)
    with torch.no_grad(), _observing_tensors_only(), _explain_control_flow(module):
        if not config.weight_only:
            return upstream.quantize_model(
                module,
                batches,
                mode=mode,
                subset_size=config.subset_size,
                fast_bias_correction=config.fast_bias_correction,
                smooth_quant=config.smooth_quant,
                extra_quantizer_options=ignored,
            )
        if config.mode.startswith("int4"):
            ignored |= {
                "group_size": config.group_size,
                "all_layers": config.all_layers,
            }
        return compress_pt2e(
            module,
            upstream.OpenVINOQuantizer(mode=mode, **ignored),
            dataset=nncf.Dataset(batches) if config.calibrates else None,
            awq=config.awq,
            scale_estimation=config.scale_estimation,
        )


def describe_place(node: Node) -> str:
    """Return text such as " in module decoder.loop", or "" if the module is unknown."""
    name = innermost_module(node)
    return f" in module {name}" if name else ""


@contextmanager
def _explain_control_flow(module: GraphModule) -> Iterator[None]:
    """Raise PipelineError if NNCF fails on control flow.

    It mistakes a branch for a constant tensor.
    """
    branches = set()
    for name, submodule in module.named_modules():
        if name and hasattr(submodule, "graph"):
            branches.add(name)
    calls = []
    for node in module.graph.nodes:
        attributes = [i.target for i in node.all_input_nodes if i.op == "get_attr"]
        if not branches.isdisjoint(attributes):
            calls.append(f"{node.target}{describe_place(node)}")
    try:
        yield
    except Exception as error:  # it may raise anything
        if not calls:
            raise
        raise PipelineError(
            f"openvino: NNCF quantizes no method with control flow, and it has {calls[0]}; leave "
            "out `quantize` for it, or use another quantizer"
        ) from error


@contextmanager
def _observing_tensors_only() -> Iterator[None]:
    """Raise PipelineError if NNCF tries to observe a size, which is a number, as a tensor."""
    try:
        yield
    except NotImplementedError as error:
        if "isempty" not in str(error):
            raise
        raise PipelineError(
            "openvino: NNCF can't observe a method that computes with its dynamic sizes; export "
            "it with fixed sizes, or use a weight-only mode such as int8wo_sym"
        ) from error
