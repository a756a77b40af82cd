"""Replacements for functions of torchao and XNNPACK's quantizer, in place while a worker quantizes.

Each applies only to the source code that it was written for.
"""

from __future__ import annotations

from executorch.backends.xnnpack.quantizer import xnnpack_quantizer_utils
from torchao.quantization.pt2e import qat_utils, utils
from torchao.quantization.pt2e.observer import HistogramObserver

from pipeline.features.speedups import histogram_search, quantizer_patterns
from pipeline.features.speedups.patch import Patch

_PT2E = "torchao.quantization.pt2e"
QUANTIZING_PATCHES = (
    Patch(
        f"{_PT2E}.export_utils:_replace_dropout",
        "51e49a8c7c6ea03ac8b0016fce45db584191ddb2c2e4f236989d5f917ca39642",
        quantizer_patterns.make_search(utils),
    ),
    Patch(
        f"{_PT2E}.export_utils:_replace_batchnorm",
        "42165f90b516012cd28e6316b0bafab6a1a61495b741ac4a1636997f0da1b90b",
        quantizer_patterns.make_search(utils),
    ),
    Patch(
        f"{_PT2E}.qat_utils:_fold_conv_bn_qat_helper",
        "b2022a114533cea55ebad480b2c8bd251dc729cf4b5e99ec98bd9bdc06097981",
        quantizer_patterns.make_search(qat_utils),
    ),
    Patch(
        "executorch.backends.xnnpack.quantizer.xnnpack_quantizer_utils:"
        "_do_annotate_conv_bn",
        "5e443f9c19aa6d93957e06e30ff0b82ff50c4e4af4b26572ebe335266d5a1981",
        quantizer_patterns.make_search(xnnpack_quantizer_utils),
    ),
    Patch(
        f"{_PT2E}.utils:torch",
        "f7dc6e8b58289c188f7cdd9fa9095338b017bb4b7164bb389bcc3dc2afaff453",
        quantizer_patterns.make_torch,
        texts=(utils._get_aten_graph_module_for_pattern,),
    ),
    Patch(
        f"{_PT2E}.observer:HistogramObserver._non_linear_param_search",
        "86ecf6f336f277be97866a8ca5019ff25ddac52a561b68a9280b0652d5afedff",
        histogram_search.make_search,
        texts=(
            HistogramObserver._non_linear_param_search,
            HistogramObserver._compute_quantization_error,
        ),
    ),
)
