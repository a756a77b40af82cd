"""torchao's weight-only and dynamic schemes for language models, which have no delegate of their
own: torchao/quantization/quant_api.py."""

from __future__ import annotations

from pipeline.backends.entry import Quantization, lazy
from pipeline.backends.torchao.options import TorchaoQuantize

QUANTIZERS = {
    "torchao": Quantization(
        options=TorchaoQuantize, rewrite=lazy("pipeline.backends.torchao.weights:quantize_weights")
    )
}
