"""Kernels that reject an argument: validation names the operator and the line, and the remedy.

tests/features/remedies/test_remedies.py tries the remedies.
"""

import inspect

import pytest
from torch.export import export

from pipeline.devices.bindings import Package
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.features.remedies.remedies import add_remedy
from tests.support.located import build
from tests.support.rejected import Joined, Mixed, Normed, Padded, Summed, Volumes, Weighted, X

CONTIGUOUS = "call `.contiguous()` on it"
REFUSED = [
    (Mixed, "aten.add.Tensor", "aten::add.out", CONTIGUOUS),
    (Joined, "aten.cat.default", "aten::cat.out", CONTIGUOUS),
    (Normed, "aten.group_norm.default", "aten::native_group_norm.out", CONTIGUOUS),
    (Summed, "aten.cumsum.default", "aten::cumsum.out", CONTIGUOUS),
    (
        Weighted,
        "aten.conv2d.default",
        "aten::convolution.out",
        "`.to(memory_format=torch.contiguous_format)`",
    ),
    (Padded, "aten.pad.default", "aten::constant_pad_nd.out", "`x[..., 1:]`"),
    (Volumes, "aten.conv3d.default", "aten::convolution.out", "functional.conv2d"),
]


def built(module):
    return build({"run": export(module().eval().requires_grad_(False), (X,))})


def line_of(module):
    lines, start = inspect.getsourcelines(module.forward)
    return start + len(lines) - 1


@pytest.mark.parametrize(("module", "operator", "kernel", "remedy"), REFUSED)
def test_a_rejecting_kernel_is_named_with_its_line_and_remedy(module, operator, kernel, remedy):
    made = built(module)
    with pytest.raises(DeviceError) as refused:
        Package(PackageFiles("small.pte", made.pte)).run("run", (X,))
    instructions = made.emission.instructions("run", made.lowered["run"])
    assert refused.value.code == 0x12
    assert refused.value.instruction in instructions.node_places
    assert f"in operator {kernel}: 0x12" in refused.value.reason
    assert remedy in add_remedy(refused.value.reason)
    (culprit,) = made.located("run", (X,)).culprits
    assert (culprit["operator"], culprit["kernel"]) == (operator, kernel)
    assert culprit["line"] == f"tests/support/rejected.py:{line_of(module)}"
    assert culprit["what"].startswith(f"ExecuTorch's runtime refuses {operator}")
    assert remedy in culprit["what"]


def test_what_the_runtime_says_is_kept_whole_but_for_its_tensors():
    with pytest.raises(DeviceError) as refused:
        Package(PackageFiles("small.pte", built(Joined).pte)).run("run", (X,))
    assert refused.value.reason == (
        "fails: wrong dtype or number of inputs, or an argument that an operator refused (0x12); "
        "Check failed (all_contiguous || all_channels_last): 2 input tensors have different dim "
        "orders; KernelCall failed at instruction 0:1 in operator aten::cat.out: 0x12"
    )
