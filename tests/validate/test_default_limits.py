"""Without limits in the config, outputs are judged by what their program can compute."""

import math

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.config.validation import Limits, ValidateConfig
from pipeline.features.rounding.source import RoundedSource
from pipeline.features.rounding.sums import find_sum
from pipeline.program.eager import Source
from pipeline.program.graphs import iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.program.operators import base_name
from pipeline.program.quantized_values import is_quantized
from pipeline.validate.default_limits import (
    MOST_SHARE,
    MOST_SHARE_QUANTIZED,
    cap_limits,
    limits_of_rounding,
    most_share,
    what_it_computes_in,
)
from pipeline.validate.limits import check_limits, drop_limits_of_noise
from pipeline.validate.metrics import compare
from pipeline.validate.package import validate_package
from pipeline.validate.references import References
from tests.devices.test_bindings import lowered, write
from tests.mutations.samples import SAMPLES, quantized_programs


class Deep(nn.Module):
    """Layers with `width` inputs each, with residual connections."""

    def __init__(self, depth=3, width=64):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)) + x
        return x


def made(dtype, depth=3, width=64):
    module = Deep(depth, width).to(dtype).eval().requires_grad_(False)
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(1)).to(dtype)
    return module, export(module, (x,)), InputSet((x,))


def derived(program, inputs):
    references = References.make({"run": program}, {}, True)["run"]
    (expected,) = references.source.run(inputs)
    rounded = [outputs[0] for outputs in references.run_rounded(inputs)]
    return expected, limits_of_rounding(expected, rounded, float(expected.abs().max()))


def wrong(actual, expected, limits):
    return list(check_limits(compare(actual, expected), actual, expected, limits))


def no_bias(module):
    module.layers[1].bias.zero_()


def one_channel(module):
    module.layers[1].weight[5] = module.layers[1].weight[6]


def scaled(module):
    module.layers[1].weight *= 1.25


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", [no_bias, one_channel, scaled])
def test_a_fault_of_a_kernel_is_beyond_the_limits(dtype, fault):
    module, program, inputs = made(dtype)
    expected, limits = derived(program, inputs)
    broken = made(dtype)[0]
    fault(broken)
    assert wrong(broken(*inputs.args), expected, limits)
    assert not wrong(module(*inputs.args), expected, limits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_in_the_dtype_itself_are_within_the_limits(dtype):
    """Portable kernels compute this way: value by value, with each partial sum rounded."""
    module, program, inputs = made(dtype, width=512)

    def summed(x):
        for layer in module.layers:
            total = torch.zeros(x.shape[0], 512, dtype=dtype)
            for k in range(512):
                total = total + x[:, k : k + 1] * layer.weight[:, k]
            x = torch.nn.functional.gelu(total + layer.bias) + x
        return x

    expected, limits = derived(program, inputs)
    assert not wrong(summed(*inputs.args), expected, limits)


class Autocast(nn.Module):
    """A linear layer that casts its float32 input and weights."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.dtype = nn.Linear(512, 8), dtype

    def forward(self, x):
        with torch.autocast("cpu", self.dtype):
            return self.layer(x).float()


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("one_sign", [False, True])
def test_sums_under_autocast_are_within_the_limits(dtype, one_sign):
    """Float32 goes in and out; portable kernels round each partial sum to the dtype."""
    module = Autocast(dtype).eval().requires_grad_(False)
    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(1))
    if one_sign:  # partial sums grow all the way, in each output of a row
        x[0] = module.layer.weight.mean(0).sign() * x[0].abs()
    total = torch.zeros(4, 8, dtype=dtype)
    for k in range(512):
        total = total + x[:, k : k + 1].to(dtype) * module.layer.weight[:, k].to(dtype)
    actual = (total + module.layer.bias.to(dtype)).float()
    expected, limits = derived(export(module, (x,)), InputSet((x,)))
    assert not wrong(actual, expected, limits)
    assert wrong(actual * 1.5, expected, limits)


def test_limits_follow_dtype_and_depth():
    found = {
        (dtype, depth): derived(*made(dtype, depth)[1:])[1] for dtype in DTYPES for depth in (1, 6)
    }
    assert [found[dtype, 6].min_sqnr for dtype in DTYPES] == [80.0, 44.6, 30.1]
    assert found[torch.float32, 6].atol == 1e-4
    for depth in (1, 6):
        assert found[torch.float16, depth].atol < found[torch.bfloat16, depth].atol / 4
    for dtype in DTYPES[1:]:
        assert found[dtype, 1].atol < found[dtype, 6].atol / 2


def test_small_values_are_not_free():
    """For example the values of a softmax, all of which are close to zero."""
    expected = torch.softmax(torch.randn(1, 1000), -1)
    limits = limits_of_rounding(expected, [expected, expected], float(expected.max()))
    assert limits.atol < 1e-4 * float(expected.max()) * 1.1
    assert wrong(expected.roll(1), expected, limits)


def test_subnormal_values_may_be_zero():
    """Kernels that flush them, such as XNNPACK's, return zero."""
    expected = torch.linspace(-9e-41, 9e-41, 100)
    limits = limits_of_rounding(expected, [expected, expected], 9e-41)
    limits = drop_limits_of_noise(limits, expected)
    assert not wrong(torch.zeros(100), expected, limits)
    assert wrong(torch.full((100,), 1e-37), expected, limits)


def test_integers_are_exact_unless_rounding_moves_them():
    values = torch.arange(100)
    exact = limits_of_rounding(values, [values, values], 99)
    assert not wrong(values, values, exact)
    off = values.clone()
    off[3] += 1
    assert wrong(off, values, exact)
    moved = limits_of_rounding(values, [off, values], 99)
    assert not wrong(off, values, moved)
    assert wrong(values + 1, values, moved)
    assert wrong(off, values, Limits(atol=5.0, rtol=1.0))  # set by the config, never for integers


def test_rounding_is_that_of_its_seed_and_leaves_whole_numbers_alone():
    class Places(nn.Module):
        def forward(self, x):
            index = (torch.arange(8) * 1.0 + 2.0).to(torch.int64) % 8
            return x[index] * 3.0, index

    x = torch.randn(8)
    program = export(Places(), (x,))
    found = []
    for seed in (1, 1, 2):
        source = RoundedSource(program)
        source.reseed(seed)
        found.append(source.run(InputSet((x,))))
    (value, index), (same, _), (other, _) = found
    assert torch.equal(value, same) and not torch.equal(value, other)
    assert torch.equal(index, (torch.arange(8) + 2) % 8)
    exact, _ = Source(program).run(InputSet((x,)))
    assert torch.allclose(value, exact, rtol=4e-7, atol=0)


def test_what_is_summed():
    x, w = torch.zeros(2, 3, 8, 8), torch.zeros(5, 3, 3, 3)
    assert find_sum("conv2d", (x, w)) == (0, 27)
    assert find_sum("linear", (x, w)) == (0, 8)
    assert find_sum("addmm", (x, x, w)) == (1, 8)
    assert find_sum("_softmax", (x, -1, False)) == (0, 8)
    assert find_sum("mean", (x, [2, 3], True)) == (0, 64)
    assert find_sum("sum", (x,)) == (0, 384)
    assert find_sum("layer_norm", (x, [8, 8])) == (0, 64)
    assert find_sum("conv_transpose2d", (x, torch.zeros(3, 7, 2, 2))) == (0, 12)
    assert find_sum("mv", (torch.zeros(4, 9), torch.zeros(9))) == (0, 9)
    assert find_sum("upsample_bilinear2d", (x, [16, 16], False)) == (0, 4 * 16**2)
    assert find_sum("_upsample_bicubic2d_aa", (x.half(), [4, 4], False)) == (0, 16)
    assert find_sum("col2im", (x, [6, 6], [3, 3])) == (0, 9)
    rows, places = torch.zeros(100, 3, 8, 8), torch.arange(100) % 2
    assert find_sum("index_add", (x, 0, places, rows)) == (3, 50)
    assert find_sum("relu", (x,)) == find_sum("full", (3,)) == (0, 1)


def test_operators_of_several_sums_are_rounded_one_by_one():
    """For example an LSTM's gates: rounding just its inputs and results underestimates."""
    torch.manual_seed(0)
    module = nn.LSTM(64, 32, batch_first=True).to(torch.bfloat16).eval().requires_grad_(False)
    x = torch.randn(1, 6, 64).to(torch.bfloat16) * 16
    source = RoundedSource(export(module, (x,)))
    names = {base_name(node) for node in iter_nodes(source.program)}
    assert "lstm" not in names and "linear" in names
    assert len(source.run(InputSet((x,)))) == 3


@pytest.mark.slow
def test_a_program_that_is_quantized_in_its_source_is_judged_as_such():
    programs, quantized = quantized_programs(dynamic=False)
    program = quantized["text"]
    assert is_quantized(program) and not is_quantized(programs["text"])
    assert what_it_computes_in(program) == "quantized"
    inputs = InputSet((torch.randn(4, 16, generator=torch.Generator().manual_seed(5)),))
    expected, limits = derived(program, inputs)
    assert 15 < limits.min_sqnr < 45
    step = float(expected.unique().diff().min())
    off = expected.clone()
    off[1, 2] += step  # rounding may do this occasionally
    assert not wrong(off, expected, limits)
    assert wrong(expected + 2 * step, expected, limits)  # another zero point
    assert wrong(expected * 1.2, expected, limits)


@pytest.mark.parametrize("settings", [{}, {"cases": ("large",)}, {"atol": 1.0}])
def test_a_source_that_finds_its_ranges_runs_on_large_values_if_asked(settings, tmp_path):
    sample = SAMPLES["dynamic"]()
    pte = tmp_path / "model.pte"
    pte.write_bytes(sample.files.pte)
    (result,) = validate_package(
        pte, (), sample.quantized, {}, ValidateConfig(inputs=1, **settings), {},
        cases={"text": ("zeros", "large")},
    ).methods  # fmt: skip
    assert result.ok, result.failures
    assert [run.case for run in result.runs] == ["", "zeros", *(["large"] if settings else [])]
    assert [name for name, _ in result.skipped] == ([] if settings else ["large"])


def test_a_limit_of_the_config_wins():
    config = ValidateConfig(methods={"own": {"rtol": 0.0}, "noisy": {"min_sqnr": 9.0}})
    assert (config.select_limits("other").atol, config.select_limits("other").rtol) == (None, None)
    assert (config.select_limits("own").atol, config.select_limits("own").rtol) == (1e-4, 0.0)
    noisy = config.select_limits("noisy")
    assert (noisy.atol, noisy.min_sqnr) == (None, 9.0)
    assert math.isclose(ValidateConfig(atol=0.5).select_limits("any").rtol, 1e-3)


class Mapped(nn.Module):
    def forward(self, x):
        return torch.vmap(lambda row: row.sin().sum())(x)


def test_rounding_opens_no_level_of_vmap_for_what_runs_next():
    """Drawing fails inside a level, and used to leave it open."""
    x = torch.randn(4, 8)
    source = RoundedSource(export(Mapped(), (x,)))
    (rounded,) = source.run(InputSet((x,)))
    torch.testing.assert_close(rounded, x.sin().sum(1))
    assert torch.rand(2).shape == (2,)


class Ranged(nn.Module):
    """A layer on dynamically quantized values, with steps of at least `least`."""

    def __init__(self, least):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.least = nn.Linear(64, 8, bias=False), least

    def forward(self, x):
        ops, bounds = torch.ops.quantized_decomposed, (-128, 127)
        scale, zero = ops.choose_qparams.tensor(x, *bounds, self.least, torch.int8)
        steps = ops.quantize_per_tensor.tensor(x, scale, zero, *bounds, torch.int8)
        return self.layer(ops.dequantize_per_tensor.tensor(steps, scale, zero, *bounds, torch.int8))


@pytest.mark.parametrize("size", [1e-7, 1e-3, 1.0])
def test_a_kernel_that_knows_no_least_step_is_within_the_limits(size):
    """XNNPACK's, where a program with values below the step returns zeros, or a few steps."""
    x = size * torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    coarse, fine = (Ranged(least).eval().requires_grad_(False) for least in (2**-12, 1e-30))
    expected, limits = derived(export(coarse, (x,)), InputSet((x,)))
    usual = derived(export(fine, (x,)), InputSet((x,)))[1]
    difference = float((fine(x) - expected).abs().max())

    assert not wrong(fine(x), expected, limits)
    if size == 1.0:
        assert difference == 0 and limits == usual
    else:
        assert difference / 2 < limits.atol <= max(3 * difference, 1e-4 * size)
        assert wrong(expected + 4 * limits.atol, expected, limits)


@pytest.mark.parametrize("value", [0.7, -0.7])
def test_a_range_of_one_value_may_end_a_step_further(value):
    """All values are then at its end, and XNNPACK's zero point differs."""
    module = Ranged(2**-12).eval().requires_grad_(False)
    x = torch.full((1, 64), value)
    expected, limits = derived(export(module, (x,)), InputSet((x,)))
    assert not wrong(expected * (1 + 1 / 255), expected, limits)
    assert wrong(expected * (1 + 4 / 255), expected, limits)


def test_a_limit_of_more_than_a_share_of_the_signal_is_none():
    expected = torch.randn(100, generator=torch.Generator().manual_seed(0))
    usual = float(expected.abs().max())
    wide = limits_of_rounding(expected, [expected * 1.5, expected * 0.7], usual)
    assert wide.atol > 0.5 * usual and wide.min_sqnr < 6
    capped = cap_limits(wide, expected, usual, MOST_SHARE)
    assert capped.atol == pytest.approx(MOST_SHARE * usual, rel=0.06)
    assert capped.min_sqnr == pytest.approx(40.0)
    close = limits_of_rounding(expected, [expected, expected], usual)
    assert cap_limits(close, expected, usual, MOST_SHARE) == close


@pytest.mark.parametrize(
    ("dtype", "share"),
    [(torch.float32, 1e-2), (torch.float16, 1e-2), (torch.bfloat16, 6.25e-2)],
)
def test_coarse_dtypes_have_wider_ceilings(dtype, share):
    assert most_share(made(dtype)[1]) == pytest.approx(share)


def test_integers_that_rounding_moves_must_be_exact_to_be_right():
    places = torch.arange(10)
    wide = limits_of_rounding(places, [places + 3, places], 9)
    assert wide.atol > 3
    assert cap_limits(wide, places, 9, MOST_SHARE).atol == 0
    steps = torch.arange(10, dtype=torch.int8)
    wide = limits_of_rounding(steps, [steps + 3, steps], 9)
    assert cap_limits(wide, steps, 9, MOST_SHARE_QUANTIZED).atol == 1


class Cancelling(nn.Module):
    """A difference of two large numbers: what remains is mostly rounding."""

    def forward(self, x):
        large = x * 1e5 + 1e5
        return (large + x * 1e-2) - large


def test_an_ill_conditioned_source_is_not_judged_and_says_where_it_starts():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    program = export(Cancelling(), (x,))
    other = export(Other(), (x,))
    pte = write("cancelling.pte", lowered({"run": other}).buffer)
    settings, examples = ValidateConfig(inputs=0), {"run": [InputSet((x,), {}, "example 0")]}
    (method,) = validate_package(pte, (), {"run": program}, examples, settings, {}).methods
    assert method.verdict == "not judged" and method.ok
    assert "ill-conditioned" in method.verdict_reason
    assert "starts at aten.sub.Tensor" in method.verdict_reason


class Other(nn.Module):
    def forward(self, x):
        return x * 1e-2 + 0.004


def test_within_the_ceiling_even_an_ill_conditioned_source_passes():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    program = export(Cancelling(), (x,))
    pte = write("cancelling.pte", lowered({"run": program}).buffer)
    settings, examples = ValidateConfig(inputs=0), {"run": [InputSet((x,), {}, "example 0")]}
    (method,) = validate_package(pte, (), {"run": program}, examples, settings, {}).methods
    assert method.verdict == "passed"


class NearInfinity(nn.Module):
    def forward(self, x):
        return torch.log(1 - torch.tanh(x * 4) ** 2)


def validated_as(module, other, x):
    program, package = export(module, (x,)), export(other, (x,))
    pte = write("other.pte", lowered({"run": package}).buffer)
    settings, examples = ValidateConfig(inputs=0), {"run": [InputSet((x,), {}, "example 0")]}
    (method,) = validate_package(pte, (), {"run": program}, examples, settings, {}).methods
    return method


class Infinite(nn.Module):
    def forward(self, x):
        y = torch.log(1 - torch.tanh(x * 4) ** 2)
        return torch.where(y < -14, torch.full_like(y, -torch.inf), y)


def test_rounding_that_reaches_infinity_is_not_judged():
    x = torch.linspace(-3, 3, 96).reshape(4, 24)
    assert validated_as(NearInfinity(), NearInfinity(), x).verdict == "passed"
    method = validated_as(NearInfinity(), Infinite(), x)
    assert method.verdict == "not judged", method.failures


class Ties(nn.Module):
    def __init__(self, tie):
        super().__init__()
        self.tie = tie

    def forward(self, x):
        few = torch.where(x < 0.54, x * self.tie, x * (1 - 6e-8))  # most of them near ties
        scores = torch.stack([x, few, x - 1], -1)
        return scores.argmax(-1)


class NoTies(nn.Module):
    def forward(self, x):
        return torch.stack([x - 1, x, x - 2], -1).argmax(-1)


def test_integers_that_hang_on_a_tie_are_not_judged():
    x = torch.linspace(0.5, 2, 64)
    method = validated_as(Ties(1 - 6e-8), Ties(1 + 2e-7), x)
    assert method.verdict == "not judged", method.failures
    assert "allow: [not-judged]" in method.verdict_reason
    other = validated_as(Ties(1 - 6e-8), NoTies(), x)
    assert other.verdict == "failed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [64, 1 << 15])
def test_values_are_rounded_up_as_often_as_down(dtype, size):
    x = (torch.rand(size, generator=torch.Generator().manual_seed(0)) + 1).to(dtype)
    source = RoundedSource(export(Same(), (x,)))
    eps = torch.finfo(dtype).eps
    moves = []
    for seed in range(max(1, (1 << 15) // size)):
        source.reseed(seed)
        (rounded,) = source.run(InputSet((x,)))
        moves.append((rounded.double() - x.double()) / eps)
    moved = torch.cat(moves)
    assert abs(moved.mean()) < 0.03 < 0.25 < (moved > 0).double().mean()
    assert moved.abs().max() <= 2.0
    source.reseed(0)
    assert torch.equal(source.run(InputSet((x,)))[0], moves[0].mul(eps).add(x.double()).to(dtype))


def test_two_seeds_round_many_values_differently():
    x = torch.rand(1 << 19, generator=torch.Generator().manual_seed(0)) + 1
    source = RoundedSource(export(Same(), (x,)))
    outputs = []
    for seed in range(2):
        source.reseed(seed)
        outputs.append(source.run(InputSet((x,)))[0] - x)
    both = torch.stack(outputs)
    assert abs(torch.corrcoef(both)[0, 1]) < 0.01


class Same(nn.Module):
    def forward(self, x):
        return x * 1


class Kink(nn.Module):
    """Adds, magnified, how far rounding moves a sum up beyond 2.4 units in the last place."""

    def __init__(self, add):
        super().__init__()
        self.add = add

    def forward(self, x):
        return x + torch.relu(self.add(x) - x - 2.4 * 2**-23 * x) * 2.0**17


def test_rounding_that_seldom_moves_an_output_is_looked_for_before_it_fails():
    x = torch.rand(1, 6, generator=torch.Generator().manual_seed(0)) + 1
    source = Kink(lambda x: x * 3 - x * 2)
    _, limits = derived(export(source, (x,)), InputSet((x,)))
    rounded_otherwise = Kink(lambda x: x + x * 3e-7)
    distance = float((rounded_otherwise(x) - source(x)).abs().max())
    assert distance > 10 * limits.atol  # two runs with rounded values show none of it
    assert validated_as(source, rounded_otherwise, x).verdict == "passed"
    assert validated_as(source, Kink(lambda x: x + x * 1e-5), x).verdict == "failed"


def test_a_limit_of_the_config_settles_what_is_not_judged():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    program, other = export(Cancelling(), (x,)), export(Other(), (x,))
    pte = write("cancelling.pte", lowered({"run": other}).buffer)
    examples = {"run": [InputSet((x,), {}, "example 0")]}
    settings = ValidateConfig(inputs=0, min_cosine=0.1)
    (method,) = validate_package(pte, (), {"run": program}, examples, settings, {}).methods
    assert method.verdict == "passed"
