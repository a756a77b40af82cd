"""Runs Core ML's quantizer without the patterns that can't match a model.

Upstream (executorch/backends/apple/coreml/quantizer) exports some 400 patterns for every model, one
for every activation after every kind of layer, and each takes as long as exporting a small model. A
pattern can only match if the model has all of its operators, which tracing the pattern finds much
faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from coremltools.optimize.torch.quantization import LinearQuantizerConfig
from executorch.backends.apple.coreml.quantizer import CoreMLQuantizer
from executorch.backends.apple.coreml.quantizer import (
    _coreml_quantizer_utils as upstream,
)
from executorch.backends.apple.coreml.quantizer._annotation_config import (
    AnnotationConfig,
)
from executorch.backends.apple.coreml.quantizer._coreml_quantizer import (
    _AnnotationPatternRegistry,
)
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from pipeline.features.coreml.options import CoreMLQuantize, CoreMLScheme
from pipeline.program.patching import wrapped

_MATCHERS = ("annotate_weighted_mod_pattern", "annotate_binary_op_act_pattern")
_operators: dict[tuple[Any, ...], frozenset[Any]] = {}


class Quantizer(CoreMLQuantizer):
    """A `CoreMLQuantizer` that exports only patterns that can match the model.

    It annotates each node by the scheme that applies to it.

    Upstream's `module_name_configs` treats parameters as outside any module, and applies an outer
    module's options to whatever an inner module's options leave. A filter is exact.
    """

    def __init__(self, options: CoreMLQuantize) -> None:
        super().__init__(_config(options.global_scheme()))
        self._options = options

    def annotate(self, model: GraphModule) -> GraphModule:
        with _possible_patterns(model):
            return (
                self._annotate_mixed(model)
                if self._options.mixed
                else super().annotate(model)
            )

    def _annotate_mixed(self, model: GraphModule) -> GraphModule:
        schemes = self._options.schemes()
        configs = [
            AnnotationConfig.from_quantization_config(_config(scheme).global_config)
            for scheme in schemes
        ]
        # Pattern by pattern: a pool is annotated like its input, so the input must come first,
        # whatever its scheme.
        for annotator in _AnnotationPatternRegistry.get_annotators().values():
            for scheme, config in zip(schemes, configs, strict=True):
                annotator(model, config, self._options.filter_of(scheme))
        for node in model.graph.nodes:
            scheme = (
                self._options.scheme_of(node) if node.op == "call_function" else None
            )
            if scheme is not None:
                _quantize_input(node, configs[schemes.index(scheme)])
        return model


def _quantize_input(node: Node, config: AnnotationConfig) -> None:
    """Quantize the input of a layer.

    Upstream assumes that it is quantized if its producer is annotated, even if only the producer's
    weights are.
    """
    annotation = node.meta.get(Q_ANNOTATION_KEY)
    if annotation is None or not node.args:
        return
    if annotation.input_qspec_map.get(node.args[0], config) is None:
        annotation.input_qspec_map[node.args[0]] = config.input_activation


def _config(scheme: CoreMLScheme) -> LinearQuantizerConfig:
    return LinearQuantizerConfig.from_dict({"global_config": scheme.resolved()})


@contextmanager
def _possible_patterns(model: GraphModule) -> Iterator[None]:
    """Within the context, don't export or match patterns with operators that the model lacks."""
    model.graph.eliminate_dead_code()  # every match begins with this
    model.recompile()
    model_operators = {node.target for node in model.graph.nodes}

    def export(
        original: Callable[..., Any],
        pattern: torch.nn.Module,
        inputs: tuple[Any, ...],
        *options: Any,
    ) -> Any:
        possible = _find_operators(pattern, inputs) <= model_operators
        return original(pattern, inputs, *options) if possible else None

    def annotate(
        original: Callable[..., Any],
        model: GraphModule,
        pattern: GraphModule | None,
        *options: Any,
    ) -> Any:
        return original(model, pattern, *options) if pattern is not None else []

    with ExitStack() as patches:
        patches.enter_context(wrapped(upstream, "_get_aten_graph_module", export))
        for name in _MATCHERS:
            patches.enter_context(wrapped(upstream, name, annotate))
        yield


def _find_operators(
    pattern: torch.nn.Module, inputs: tuple[Any, ...]
) -> frozenset[Any]:
    """Return the operators that a pattern calls.

    Upstream's patterns differ only in the functions and settings that their `forward` closes over,
    and in the shapes of their inputs.
    """
    function = pattern.forward.__func__  # type: ignore[attr-defined]
    closed = tuple(cell.cell_contents for cell in function.__closure__ or ())
    key = (function.__code__, closed, tuple(tensor.shape for tensor in inputs))
    if key not in _operators:
        traced = make_fx(pattern, tracing_mode="fake", pre_dispatch=True)(*inputs)
        nodes = traced.graph.nodes
        _operators[key] = frozenset(n.target for n in nodes if n.op == "call_function")
    return _operators[key]
