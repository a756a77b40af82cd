"""ExecuTorch's recipes by name: executorch/export/recipe.py and the backends' recipe types.

A recipe of theirs is a quantizer and a partitioner with certain options; here it stands for just
these, as they would be written out in a config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """The partitioners and the quantizer that a recipe stands for: plain data, as in YAML.

    `refused` says why it can't be had, or is "".
    """

    partitioners: tuple[Any, ...] = ()
    quantize: Mapping[str, Any] | None = None
    refused: str = ""

    def expanded(self) -> dict[str, Any]:
        """Return what a method would say instead of the recipe's name."""
        quantize = {"quantize": dict(self.quantize)} if self.quantize else {}
        return {"partitioners": list(self.partitioners), **quantize}


def _xnnpack(**quantize: Any) -> Recipe:
    # The provider passes a `precision_type` to XnnpackPartitioner, which has no such option and
    # ignores it, so all precisions are delegated.
    return Recipe(("xnnpack",), quantize or None)


def _int4(group_size: int) -> Recipe:
    scheme = "int8_dynamic_activation_int4_weight"
    return _xnnpack(quantizer="torchao", scheme=scheme, group_size=group_size)


def _coreml(quantize: Mapping[str, Any] | None = None, **options: Any) -> Recipe:
    if options.get("minimum_deployment_target", "ios18") < "ios18":
        options["take_over_mutable_buffer"] = False
    return Recipe(({"coreml": options},), quantize)


def _weight_only(bits: int, group_size: int) -> Mapping[str, Any]:
    scheme = f"int{bits}_weight_only"
    return {"quantizer": "torchao", "scheme": scheme, "group_size": group_size}


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "xnnpack_fp32": _xnnpack(),
        "xnnpack_pt2e_int8_dynamic_per_channel": _xnnpack(
            quantizer="xnnpack", dynamic=True, per_channel=True
        ),
        "xnnpack_pt2e_int8_static_per_channel": _xnnpack(quantizer="xnnpack", per_channel=True),
        "xnnpack_pt2e_int8_static_per_tensor": _xnnpack(quantizer="xnnpack", per_channel=False),
        "xnnpack_torchao_int8da_int4w_per_channel": _int4(group_size=0),
        "xnnpack_torchao_int8da_int4w_per_tensor": _int4(group_size=32),
        "coreml_fp32": _coreml(compute_precision="float32"),
        "coreml_fp16": _coreml(compute_precision="float16"),
        "coreml_pt2e_int8_static": _coreml(
            {"quantizer": "coreml", "activation_dtype": "quint8"},
            minimum_deployment_target="ios17",
        ),
        "coreml_pt2e_int8_weight_only": _coreml(
            {"quantizer": "coreml", "activation_dtype": "float32"},
            minimum_deployment_target="ios17",
        ),
        "coreml_torchao_int4_weight_only_per_channel": _coreml(
            _weight_only(4, 0), minimum_deployment_target="ios18"
        ),
        "coreml_torchao_int4_weight_only_per_group": _coreml(
            _weight_only(4, 32), minimum_deployment_target="ios18"
        ),
        "coreml_torchao_int8_weight_only_per_channel": _coreml(
            _weight_only(8, 0), minimum_deployment_target="ios16"
        ),
        "coreml_torchao_int8_weight_only_per_group": _coreml(
            _weight_only(8, 32), minimum_deployment_target="ios18"
        ),
        "coreml_codebook_weight_only": Recipe(
            refused="it means nothing without `bits` and `block_size`, which a name can't give"
        ),
        "qnn_fp16": Recipe(
            refused="it means nothing without `soc_model`, which a name can't give; write "
            "`partitioners: [qnn: ...]`"
        ),
    }
)
