"""Examples with sizes that a package wasn't lowered for, and the advice about them."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import nn
from torch.export import Dim, export

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.ranges import kernel_guards
from pipeline.config.validation import ValidateConfig
from pipeline.features.ranges.recorder import InputSizes, record_ranges
from pipeline.program.graphs import NodePlaces
from pipeline.program.inputs import InputSet
from pipeline.store.remedies import range_remedy
from pipeline.validate.package import validate_package

LIMITS = ValidateConfig.model_validate({"atol": 1e-4, "inputs": 1, "cases": []})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return torch.relu(self.conv(x)).mean((2, 3))


def program_of(least: int = 2, example: int = 20):
    """Export for batches up to 64, with an example that NNPACK would run from 16 on."""
    sizes = ({0: Dim("n", min=least, max=64)},)
    with torch.no_grad():
        module = Net().eval().requires_grad_(False)
        return export(module, (torch.ones(example, 3, 32, 32),), dynamic_shapes=sizes)


def validated(program, path, keep, *batches):
    """Lower without a build, and validate with examples of some batches."""
    places = NodePlaces(program)
    with kernel_guards(keep), record_ranges({"run": program}) as find_narrowed:
        edge = lower({"run": program}, {"run": [XnnpackPartitioner()]})
        sizes = InputSizes(edge.exported_program("run"))
        path.write_bytes(emit(edge).buffer)
        found = find_narrowed("run", sizes, places)
    narrowed = [(size, range_remedy(size["operator"], size["lowered"], keep)) for size in found]
    examples = [InputSet((torch.randn(n, 3, 32, 32),), {}, f"example {n}") for n in batches]
    settings, given = LIMITS, {"run": narrowed}
    result = validate_package(
        path, (), {"run": program}, {"run": examples}, settings, {}, narrowed=given
    )
    return found, result.failures


def test_examples_outside_of_what_was_lowered_fail_and_keep_ranges_mends_it(tmp_path):
    found, failures = validated(program_of(), tmp_path / "a.pte", False, 4, 32, 8)
    assert [(each["source"], each["lowered"]) for each in found] == [((2, 64), (16, 64))]
    four, eight = failures
    assert four.endswith(
        "example 4: x.shape[0] is 4, but it is lowered for 16 to 64; `edge: {keep_ranges: true}` "
        "may keep them"
    )
    assert "example 8: x.shape[0] is 8" in eight
    assert validated(program_of(), tmp_path / "b.pte", True, 4, 32, 8) == ([], ())


def test_a_package_that_takes_less_says_how_it_takes_all(tmp_path):
    _, (failure,) = validated(program_of(example=4), tmp_path / "a.pte", False, 4)
    assert failure.endswith(
        "declares room for size 15, but the source accepts up to 64 at dimension 0; "
        "`edge: {keep_ranges: true}` may keep them"
    )


def test_an_export_for_less_is_lowered_as_it_is(tmp_path):
    assert "Dim(..., min=16, max=64)" in range_remedy("aten.mul.Tensor", (16, 64), False)
    assert "Dim(..., min=16, max=64)" in range_remedy("aten.conv2d.default", (16, 64), True)
    assert "Dim(..., min=3)" in range_remedy("aten.mul.Tensor", (3, None), False)
    assert validated(program_of(16), tmp_path / "a.pte", False, 32) == ([], ())


@pytest.mark.parametrize("operator", ["", "aten.conv1d.default"])
def test_keep_ranges_is_advised_where_it_may_help_and_is_not_set(operator):
    assert "keep_ranges" in range_remedy(operator, (2, 15), False)
    assert "keep_ranges" not in range_remedy(operator, (2, 15), True)
