"""torchao's weight-only and dynamic schemes for language models, which have no delegate.

Source: torchao/quantization/quant_api.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pipeline.backends.entry import Quantization, lazy
from pipeline.backends.options import ModuleName, Options, rule
from pipeline.backends.quantize_options import LeftAlone, QuantizeConfig

Scheme = Literal[
    "int8_weight_only",
    "int4_weight_only",
    "int8_dynamic_activation_int8_weight",
    "int8_dynamic_activation_int4_weight",
]


def _check_group(size: int) -> int:
    if size and (size < 32 or size & (size - 1)):
        raise rule("must be 0 (a scale a channel) or 32, 64, 128, ...")
    return size


GroupSize = Annotated[int, Field(ge=0), AfterValidator(_check_group)]


class EmbeddingOptions(Options):
    """Quantization of the embedding tables, which portable operators look up."""

    bits: Literal[4, 8] = 8
    """The number of bits of a quantized value."""
    group_size: GroupSize = 0
    """The number of values of a row that share a scale; 0 means the whole row."""


class TorchaoQuantize(QuantizeConfig):
    """Options of torchao's `quantize_` for the linear layers and embeddings of a method.

    Weights are symmetric, with a scale for each channel or group of a channel. Activations of a
    dynamic scheme are quantized at run time, with a scale for each token.
    """

    quantizer: Literal["torchao"]
    dynamic: Literal[False] = False
    """Must be false: the scheme determines whether activations are quantized dynamically."""
    scheme: Scheme | None = None
    "The quantization of linear layers; by default none."
    group_size: GroupSize = 32
    """The number of weights in a channel that share a scale; 0 means all."""
    algorithm: Literal["affine", "hqq_scale_only"] = "affine"
    """The algorithm that chooses the scales of weights."""
    embedding: EmbeddingOptions | None = None
    """The quantization of embeddings: `bits` (8 or 4) and `group_size` (the number of values of a
    row that share a scale; 0, the default, means all). By default none."""
    modules: dict[ModuleName, LeftAlone] = Field({})
    """Modules to leave unquantized, by qualified name, each with the value `none`."""

    @model_validator(mode="after")
    def _quantizes_something(self) -> Self:
        if self.scheme is None and self.embedding is None:
            raise rule("must hold `scheme`, `embedding` or both")
        return self

    def explain_float(self, operator: str, shape: Sequence[int]) -> str:
        group_size = self._find_group_size(operator)
        if len(shape) != 2 or not group_size or not shape[1] % group_size:
            return ""
        place = "embedding.group_size" if operator == "embedding" else "group_size"
        return (
            f"{place} {group_size} does not divide its rows of {shape[1]} values; {place}: 0 gives "
            "each row one scale"
        )

    def _find_group_size(self, operator: str) -> int:
        if operator == "embedding" and self.embedding is not None:
            return self.embedding.group_size
        return (
            self.group_size if operator == "linear" and self.scheme is not None else 0
        )

    @property
    def calibrates(self) -> bool:
        return False

    @property
    def depends_on_host(self) -> bool:
        return self.algorithm != "affine"  # it iterates through float kernels


QUANTIZERS = {
    "torchao": Quantization(
        options=TorchaoQuantize,
        apply_quantizer=lazy("pipeline.features.torchao.weights:quantize_weights"),
        backends=None,
    )
}
