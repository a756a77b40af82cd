"""Known faults of ExecuTorch's runtime, which a validation correctly catches.

Each also shows in the joint call's result, without any of this pipeline's code. A fault is
identified by the operator, by what runs it, and by what goes wrong: another fault of the same
operator, or the same one elsewhere, raises an alarm.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from pipeline.program.runtime_bindings import import_bindings

NO_KERNEL = "the wheel's runtime has no kernel for the operator"


@dataclass(frozen=True)
class Fault:
    """A fault of one kernel.

    Attributes:
        operators: as the report's culprits name them; empty if no culprit can be found, since the
            method doesn't run: then `failure` names the kernel.
        runs: the kernel, or the backend.
        failure: a pattern for the whole failure.
        reason: what is wrong.
        cases: a pattern for the names of cases, if neither operator nor kernel is known.
    """

    operators: frozenset[str]
    runs: str
    failure: str
    reason: str
    cases: str = ".*"


_NOT_FINITE = r"\d+ values? NaN or infinite, but not on both sides, as at \[.*\] "
_NO_VOLUMES = r"fails: .*Expect input tensor to be 3-D or 4-D.*aten::convolution\.out: 0x12.*"
FAULTS = (
    Fault(
        frozenset(
            {"aten.conv3d.default", "aten.conv_transpose3d.input", "aten.convolution.default"}
        ),
        "aten::convolution.out",
        _NO_VOLUMES,
        "the portable convolution takes no volumes",
    ),
    Fault(
        # The convolution's weights are quantized per channel, and the payload has one of two nodes.
        frozenset({"quantized_decomposed.dequantize_per_tensor.default"}),
        "XnnpackBackend",
        _NO_VOLUMES,
        "the portable convolution takes no volumes, and XNNPACK makes zeros of what it is given",
    ),
    Fault(
        frozenset({"aten.rsqrt.default"}),
        "XnnpackBackend",
        _NOT_FINITE + r"\(nan, must be inf\)",
        "XNNPACK's rsqrt of 0 is not inf",
    ),
    Fault(
        frozenset({"aten.gelu.default"}),
        "XnnpackBackend",
        r"absolute error 0\.000\d+ at .* exceeds .*|SQNR [\d.]+ dB is below 80 dB",
        "XNNPACK computes gelu by erf, whatever its approximation",  # at most 4.8e-4 apart
    ),
    Fault(
        frozenset({"aten.floor_divide.default", "aten.div.Tensor_mode"}),
        "aten::div.out_mode",
        _NOT_FINITE + r"\(inf, must be nan\)",
        "the portable kernel of 0 // 0 gives inf, torch NaN",
    ),
    Fault(
        frozenset({"aten.pad.default", "aten.constant_pad_nd.default"}),
        "aten::constant_pad_nd.out",
        r"fails: .*Padding values must be non-negative.*aten::constant_pad_nd\.out: 0x12.*",
        "the portable kernel of constant_pad_nd cuts nothing off",
    ),
    Fault(
        # The method consists of this operator only, so there is nothing in between to look at.
        frozenset(),
        "",
        r"absolute error 1 at \[.*\] \(-128, must be -127\) exceeds 0",
        "XNNPACK quantizes to all of int8, also where the least value is -127",
    ),
    Fault(
        # The same when values are dequantized again: half of them saturate, and are off by one
        # step.
        frozenset({"quantized_decomposed.quantize_per_tensor.default"}),
        "XnnpackBackend",
        r"SQNR 4[45]\.\d dB is below 6[24](\.\d)? dB",
        "XNNPACK quantizes to all of int8, also where the least value is -127",
        cases=r"conv2d__\w+_conv_transpose_2d_quantize_per_channel_multi_axis",
    ),
    Fault(
        # Upstream's own test wants these scales, along an axis that isn't the channel axis,
        # refused.
        frozenset({"quantized_decomposed.dequantize_per_tensor.default"}),
        "XnnpackBackend",
        r"absolute error (31\.[45]|15\.8) at \[.*\] .*|SQNR -\d\.\d dB is below 6[24](\.\d)? dB",
        "the convolution is not delegated, and XNNPACK writes no value for its input",
        cases=r"conv2d__\w+_conv_transpose_2d_quantize_per_channel_multi_axis_1",
    ),
    Fault(
        # Swin's windows, once quantized; the joint call's result is refused too.
        frozenset(),
        "",
        r"does not load: internal error \(0x1\); Failed to create "
        r"(squeeze|StaticConstantPad|static transpose) node \d+ "
        r"with code: xnn_status_invalid_parameter; .*",
        "XNNPACK's runtime refuses a node that its partitioner takes",
        cases=r"torchvision__swin_v2_t_xnnpack_static_int8_\w+",
    ),
    Fault(
        # Its sizes follow from one that is at most 256; the joint call's result plans the same
        # memory.
        frozenset(),
        "",
        r"does not load: this machine has too little memory for it \(planned: 45\.7 GB\); .*",
        "ExecuTorch plans 45.7 GB for Swin's sizes that are not fixed",
        cases=r"torchvision__swin_v2_t_portable_dynamic_shapes_float32",
    ),
    Fault(
        # The joint call's result fails too: a linear layer whose weights a kernel dequantizes.
        frozenset(),
        "",
        r"ends the process that runs it \(SIGSEGV\(-11\)\) while it runs",
        "the runtime crashes on a linear without static weights",
        cases=r"linear__TestLinear_linear_q[cds]8_as_fp32_\d+",
    ),
    Fault(
        frozenset(),
        "",
        r"ends the process that runs it \(SIGABRT\(-6\)\) while it runs",
        "the portable choose_qparams ends the process on float16",
        cases=r"linear__TestLinear_qd8_f16_per_tensor_linear",
    ),
    Fault(
        # With 63 columns; with 62 and 64 the results are right, and with 8 bits too.
        frozenset({"aten.linear.default"}),
        "XnnpackBackend",
        r"absolute error [\d.]+ at .* exceeds .*|SQNR -?[\d.]+ dB is below [23]\d(\.\d)? dB",
        "XNNPACK computes with wrong weights of 4 bits where their number of columns is odd",
        cases=r"linear__TestLinear_linear_qd8_f32_per_channel_int4_([89]|1[0-5]|2[4-9]|3[01])",
    ),
    Fault(
        # Its two sizes, which are in fact one, allow for 100 by 100 rows.
        frozenset({""}),
        "XnnpackBackend",
        r"fails: .* a maximum capacity of 3000 elements to \d+ elements; .*",
        "ExecuTorch plans 3000 elements for a result of two sizes that are not fixed",
        cases=r"linear__TestLinear_qd8_per_channel_linear_with_two_batch(_[2-7])?",
    ),
)


_RANDOM_SOURCE = re.compile(
    r"the source (is random|is in training mode|reads uninitialized memory)"
)


def explain(failures: Sequence[str], culprits: Sequence[Sequence[str]], case: str = "") -> str:
    """Return which known fault explains all failures of a method, or "".

    Args:
        failures: the failures, as the report words them.
        culprits: the operator of each, and what runs it.
        case: the name of the method.
    """
    if all(_lacks_kernel(failure) for failure in failures):
        return NO_KERNEL
    if all(_RANDOM_SOURCE.match(failure) for failure in failures):
        return "the test's own module gives other values each time, or is in training mode"
    for fault in FAULTS:
        places = {(operator, fault.runs) for operator in fault.operators}
        found = set(map(tuple, culprits))
        located = found <= places and bool(found) == bool(places)
        known = located and re.fullmatch(fault.cases, case)
        if known and all(re.fullmatch(fault.failure, each, re.DOTALL) for each in failures):
            return fault.reason
    return ""


def _lacks_kernel(failure: str) -> bool:
    """Return whether a method doesn't load because the runtime lacks its kernels."""
    missing = set(re.findall(r"kernel '([^']+)' not found", failure))
    stopped = failure.startswith("does not load: missing operator")
    return stopped and bool(missing) and not missing & kernels()


@cache
def kernels() -> frozenset[str]:
    """Return the names of all kernels of the wheel's runtime and its libraries."""
    import executorch.kernels.quantized  # noqa: F401
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

    return frozenset(import_bindings()._get_operator_names())
