"""Makes Arm's quantizers from a config's options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from executorch.backends.arm.quantizer import (
    TOSAQuantizer,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
)
from executorch.backends.arm.quantizer.arm_quantizer import (
    get_uint8_io_quantization_config,
)
from executorch.backends.arm.quantizer.arm_quantizer_utils import NodeFinder
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import Quantizer

from pipeline.features.arm.options import RANGES, ArmScheme

_MARK = "pte_pipeline.scheme"  # in `node.meta`, which upstream's passes copy


def make_quantizer(config: Any, quantizer: TOSAQuantizer) -> Quantizer:
    """Return the quantizer with a config's options for the method, its inputs and outputs."""
    mixed = _Mixed(quantizer, config) if config.mixed else None
    quantizer.set_global(quantization(config))
    if config.io is not None:
        quantizer.set_io(_io_quantization(config))  # only its activations are used
    return quantizer if mixed is None else mixed


class _Mixed(Quantizer):
    """An Arm quantizer that annotates each node by the scheme that applies to it.

    Upstream's `set_module_name` and `set_node_target` see operators after decomposition, such as
    the sums and quotients of a softmax, and apply the method's options to whatever a module's don't
    cover. Here nodes are marked before decomposition, and the resulting nodes inherit the mark.
    """

    def __init__(self, quantizer: TOSAQuantizer, config: Any) -> None:
        super().__init__()
        self._quantizer = quantizer
        self._config = config
        self._schemes = [None, *config.schemes()]  # the second is the method's
        inner = quantizer.quantizer
        for number, scheme in enumerate(self._schemes):
            if number != 1:
                # Only `set_global` wraps the config in the class that a VgfQuantizer needs.
                quantizer.set_global(None if scheme is None else quantization(scheme))
                inner.set_node_finder(quantizer.global_config, _Marked(number))
        quantizer.set_global(quantization(config))
        inner.global_quantizer.node_finder = _Marked(1)

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        self._mark(model)
        return self._quantizer.transform_for_annotation(model)

    def annotate(self, model: GraphModule) -> GraphModule:
        self._mark(model)
        annotated = self._quantizer.annotate(model)
        for node in annotated.graph.nodes:
            # A mark is an index into the schemes of this config, so it would mislead a later
            # quantizer.
            node.meta.pop(_MARK, None)
        return annotated

    def validate(self, model: GraphModule) -> None:
        self._quantizer.validate(model)

    def _mark(self, model: GraphModule) -> None:
        """Mark each node with its scheme's index; nodes other than calls get the method's."""
        for node in model.graph.nodes:
            if _MARK not in node.meta:
                is_call = node.op == "call_function"
                scheme = self._config.scheme_of(node) if is_call else self._schemes[1]
                node.meta[_MARK] = self._schemes.index(scheme)


@dataclass(frozen=True)
class _Marked(NodeFinder):
    number: int

    def find_nodes(self, model: GraphModule) -> Iterator[Node]:
        return (
            node for node in model.graph.nodes if node.meta.get(_MARK) == self.number
        )


def _io_quantization(config: Any) -> Any:
    if config.io == "uint8":
        return get_uint8_io_quantization_config(**_set_options(config, "eps"))
    kind = ArmScheme.model_construct(activations=config.io, eps=config.eps)
    return quantization(config if config.io == config.activations else kind)


def quantization(scheme: Any) -> Any:
    """Return ExecuTorch's quantization config for a scheme."""
    if scheme.activations == "int16":
        epsilon = {} if scheme.eps is None else {"epsilon": scheme.eps}
        return get_symmetric_a16w8_quantization_config(scheme.per_channel, **epsilon)
    options = _set_options(scheme, *RANGES, "eps")
    return get_symmetric_quantization_config(
        is_per_channel=scheme.per_channel, **options
    )


def _set_options(scheme: Any, *names: str) -> dict[str, Any]:
    return scheme.model_dump(include=set(names), exclude_none=True)  # type: ignore[no-any-return]
