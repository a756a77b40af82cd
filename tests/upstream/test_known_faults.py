"""A known fault explains only itself."""

import pytest

from tests.upstream import faults

RSQRT = "20 values NaN or infinite, but not on both sides, as at [0] (nan, must be inf)"
PLACE = ["aten.rsqrt.default", "XnnpackBackend"]
MISSING = "does not load: missing operator (0x14); kernel 'aten::max_pool3d.out' not found."
PADDING = (
    "fails: an argument that an operator refused (0x12); Check failed (pad[i] >= 0): Padding "
    "values must be non-negative, but got pad[2] = -2; operator aten::constant_pad_nd.out: 0x12"
)
LEAST = "absolute error 1 at [0, 0, 0, 0] (-128, must be -127) exceeds 0"
MEMORY = (
    "does not load: this machine has too little memory for it (planned: 45.7 GB); memory is "
    "planned for the upper bounds of dynamic sizes: lower these bounds"
)
SATURATED = ("SQNR 45.0 dB is below 62.3 dB", ["quantized_decomposed.quantize_per_tensor.default"])
TRANSPOSED = "conv2d__TestConv2d_qs8_conv_transpose_2d_quantize_per_channel_multi_axis"
SWIN = "torchvision__swin_v2_t_portable_dynamic_shapes_float32"
CRASH = "ends the process that runs it (SIGSEGV(-11)) while it runs"


@pytest.fixture(autouse=True)
def runtime(monkeypatch):
    monkeypatch.setattr(faults, "kernels", lambda: frozenset({"aten::add.out"}))


def test_a_known_fault_is_explained():
    assert faults.explain([RSQRT], [PLACE]) == "XNNPACK's rsqrt of 0 is not inf"
    assert faults.explain([MISSING], []) == faults.NO_KERNEL
    pad = ["aten.pad.default", "aten::constant_pad_nd.out"]
    assert faults.explain([PADDING], [pad]) and faults.explain([LEAST], [])
    assert faults.explain([MEMORY], [], SWIN)
    saturated, operator = SATURATED
    assert faults.explain([saturated], [[*operator, "XnnpackBackend"]], TRANSPOSED)
    assert not faults.explain([saturated], [[*operator, "XnnpackBackend"]], "conv2d__another")
    assert faults.explain([CRASH], [], "linear__TestLinear_linear_qc8_as_fp32_1")


@pytest.mark.parametrize(
    "failures, places",
    [
        ([RSQRT], []),
        ([RSQRT], [["aten.rsqrt.default", "aten::rsqrt.out"]]),
        ([RSQRT], [["aten.sqrt.default", "XnnpackBackend"]]),
        ([RSQRT], [PLACE, ["aten.add.Tensor", "XnnpackBackend"]]),
        ([RSQRT.replace("(nan, must be inf)", "(inf, must be nan)")], [PLACE]),
        ([RSQRT, "max abs error 0.1, limit 1e-5"], [PLACE]),
        ([MISSING.replace("max_pool3d", "add")], []),
        ([MISSING, "fails: crashed"], []),
        ([LEAST.replace("-128", "-126")], []),
        ([LEAST, PADDING], []),
        ([CRASH], []),
        ([MEMORY], []),
        ([MISSING + " kernel 'aten::add.out' not found."], []),
    ],
)
def test_another_fault_is_not(failures, places):
    assert faults.explain(failures, places) == ""
