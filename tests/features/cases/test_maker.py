"""Generated input sets other than random ones: zeros, large values, limits, strided tensors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim, export

from pipeline.config.validation import CASES, Limits, ValidateConfig
from pipeline.devices import bindings
from pipeline.features.cases.maker import CaseMaker
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.signature import check_inputs
from pipeline.validate.limits import LIMITS, check_limits, drop_limits_of_noise, scale_limits
from pipeline.validate.metrics import compare
from pipeline.validate.package import validate_package
from tests.devices.test_bindings import CONSTANTS, exported, lowered, package_file, write
from tests.program.test_inputs import Embed, Sum, embed_inputs
from tests.support.configs import parse_config
from tests.validate.test_package import Conv, method, sources

LIMIT = ValidateConfig(atol=1e-5, rtol=1e-3)


def made(program, wanted=CASES, count=3, seed=0, examples=(), limits=LIMIT):
    maker = CaseMaker(Source(program), count, seed, examples, limits)
    assert [*maker.make(wanted)] == maker.sets
    return maker


def of(module, *args, shapes=None):
    return export(module.eval().requires_grad_(False), args, dynamic_shapes=shapes)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def unary(function, x=None):
    return of(Function(function), torch.ones(64) if x is None else x)


@pytest.fixture(scope="module")
def embed():
    length = Dim("length", min=2, max=9)
    args = (torch.tensor([[1, 5, 2]]), torch.ones(1, 3, dtype=torch.bool))
    kwargs = {"scale": torch.tensor(2.0), "offset": 3}
    shapes = {"tokens": {1: length}, "mask": {1: length}, "scale": None, "offset": None}
    return export(Embed(), args, kwargs, dynamic_shapes=shapes)


def test_zeros_are_zero_and_integers_stay_within_the_examples(embed):
    (zeros,) = made(embed, ["zeros"]).sets
    tokens, mask = zeros.args
    assert (zeros.case, zeros.generated) == ("zeros", True)
    assert zeros.origin.startswith("generated 3 (seed 0): zeros, tokens.shape[1]=")
    assert set(tokens.flatten().tolist()) == {0}  # the first row of the table
    assert not mask.any() and zeros.kwargs["scale"] == 0 and zeros.kwargs["offset"] == 3
    (amounts,) = made(unary(lambda x: x * 2, torch.tensor([1, 5, 2])), ["zeros"]).sets
    assert amounts.args[0].tolist() == [1, 1, 1]  # the smallest integer of the example


@settings(max_examples=15)
@given(st.integers(0, 2**40), st.integers(0, 4))
def test_every_case_fits_its_program_whatever_the_seed(embed, seed, count):
    example = embed_inputs()
    found = made(embed, seed=seed, count=count, examples=[example])
    assert {each.case for each in found.sets} >= {"zeros", "large", "strided"}
    for each in found.sets:
        check_inputs(embed, each)
        assert each.args[0].min() >= 0 and each.args[0].max() <= 6  # as in the example
        assert each.generated
    numbers = [int(each.origin.split()[1]) for each in found.sets]
    assert numbers == list(range(count, count + len(numbers)))


def test_limits_are_added_where_random_sets_leave_them_out(embed):
    lengths = {
        count: [each.args[0].shape[1] for each in made(embed, ["limits"], count).sets]
        for count in range(4)
    }
    assert lengths == {0: [2, 9], 1: [9], 2: [], 3: []}
    assert made(unary(torch.relu), ["limits"], 0).sets == []


@pytest.mark.parametrize(
    ("function", "times"),
    [(torch.relu, 1024), (torch.exp, 16), (lambda x: x.pow(13), 128)],
    ids=["relu", "exp", "pow"],
)
def test_large_values_are_as_large_as_the_source_bears(function, times):
    program = unary(function)
    (large,) = made(program, ["large"]).sets
    assert large.origin == f"generated 3 (seed 0): large, {times} times"
    assert large.args[0].abs().max() > times
    assert Source(program).run(large)[0].isfinite().all()
    assert large.growth[0] > 1


def test_where_nothing_large_is_finite_the_infinities_count():
    program = unary(lambda x: torch.exp(20 * x))
    (large,) = made(program, ["large"]).sets
    assert large.origin.endswith("large, 1024 times")
    assert Source(program).run(large)[0].isinf().any()
    pte = write("exp.pte", lowered({"run": unary(lambda x: torch.exp(20 * x))}).buffer)
    config = {"inputs": 0, "cases": ["large"]}
    assert validated(pte, program, **config).ok
    clamped = unary(lambda x: torch.exp(20 * x).clamp(max=3e38))
    pte = write("clamped.pte", lowered({"run": clamped}).buffer)
    (sentence,) = validated(pte, program, **config).failures
    assert "NaN or infinite, but not on both sides" in sentence


def test_a_source_that_rounding_moves_is_not_held_to_large_values():
    found = made(unary(lambda x: torch.sin(1e5 * x)), ["large"])
    assert found.sets == []
    assert found.skipped == [
        (
            "generated 3 (seed 0): large",
            "rounding the inputs alone moves the source's outputs beyond the limits",
        )
    ]


def test_limits_of_zero_ask_for_the_same_operations_on_large_values():
    exact = ValidateConfig(atol=0.0, rtol=0.0)
    (large,) = made(unary(lambda x: x * 3 + 1), ["large"], limits=exact).sets
    assert large.growth[0] > 100


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_large_values_are_in_the_range_of_their_dtype(dtype):
    x = torch.ones(64, dtype=dtype)
    (large,) = made(unary(lambda x: x + x, x), ["large"], limits=ValidateConfig(rtol=0.1)).sets
    value = large.args[0]
    assert value.dtype is dtype and value.abs().isfinite().all()
    assert 30 < value.abs().max() < (1000 if dtype is torch.float16 else 10000)


def test_what_the_source_raises_on_large_values_is_told():
    def checked(x):
        torch._check(x.shape[0] == 64)
        return torch.linalg.inv(x.reshape(8, 8) * 0)

    found = made(unary(checked), ["large"])
    assert found.sets == []
    ((origin, reason),) = found.skipped
    assert (origin, "singular" in reason) == ("generated 3: large", True)
    assert reason.startswith("the source program itself fails: ")


IMAGE = torch.arange(24.0).reshape(1, 2, 3, 4)
VIEWS = ["transposed", "every second value", "other memory format"]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_strided_sets_are_views_of_the_values_of_the_example(layout):
    program = of(Sum(), IMAGE.to(memory_format=layout))
    found = made(program, ["strided"], examples=[InputSet((IMAGE,), {}, "a.npz[0]")]).sets
    tail = ", values of a.npz[0]"
    assert [each.origin.partition("strided, ")[2] for each in found] == [v + tail for v in VIEWS]
    views = [each.args[0] for each in found]
    own = IMAGE.to(memory_format=layout).stride()
    assert all(view.shape == IMAGE.shape and view.stride() != own for view in views)
    assert len({view.stride() for view in views}) == 3
    assert all(torch.equal(view, IMAGE) for view in views)
    assert views[1].untyped_storage().nbytes() == 2 * IMAGE.nbytes  # with other elements in between


def test_a_source_that_takes_strides_is_not_held_to_layouts_in_which_it_gives_other_values():
    """A package gives the values for the layout that it declares."""
    taken = made(unary(lambda x: torch.as_strided(x, (2, 2), (3, 1)) + 1, IMAGE), ["strided"])
    assert taken.sets == [] and len(taken.skipped) == len(VIEWS)
    assert all("reads strides" in reason for _, reason in taken.skipped)
    inside = unary(lambda x: torch.as_strided(x.flatten() + 1, (2, 2), (3, 1)), IMAGE)
    assert len(made(inside, ["strided"]).sets) == len(VIEWS)


def test_what_can_not_lie_otherwise_is_left_alone():
    assert made(unary(torch.relu, torch.ones(())), ["strided"]).sets == []
    assert made(unary(torch.relu, torch.ones(())), ["expanded"]).sets == []
    (vector,) = made(unary(torch.relu), ["strided"]).sets
    assert vector.origin.split(", ")[1] == "every second value"


def test_an_expanded_set_has_one_value_along_a_dimension():
    (found,) = made(of(Sum(), IMAGE), ["expanded"], examples=[InputSet((IMAGE,), {}, "a")]).sets
    assert (found.case, found.origin) == ("expanded", "generated 3 (seed 0): expanded, values of a")
    (image,) = found.args
    assert torch.equal(image, IMAGE[:, :1].expand(IMAGE.shape)) and image.stride()[1] == 0


class Written(nn.Module):
    def forward(self, x, y):
        x[0] = 7.0
        return x.sum(-1) + y


def test_an_input_that_is_changed_in_place_is_not_expanded():
    """Eager mode would write to all rows of an expanded input, a package to one."""
    (case,) = made(of(Written(), torch.randn(4, 8), torch.randn(4)), ["expanded"]).sets
    x, y = case.args
    assert x.is_contiguous() and y.stride() == (0,)


# Through a package


def validated(pte, program, examples=(), **config):
    names = config.pop("cases", CASES)
    return validate_package(
        pte,
        (),
        {"run": program},
        {"run": list(examples)},
        ValidateConfig(**{"atol": 1e-4, "rtol": 1e-4, **config}),
        {},
        cases={"run": names},
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_faithful_package_passes_all_cases(seed):
    config = ValidateConfig(atol=1e-5, rtol=1e-5, min_sqnr=80.0, steps=3, seed=seed)
    every = dict.fromkeys(sources(), CASES)
    validation = validate_package(package_file(), (), sources(), {}, config, CONSTANTS, cases=every)
    assert validation.failures == ()
    ran = {run.case for each in validation.methods for run in each.runs}
    assert ran == {"", *CASES} - {"limits"}  # the random sets have those
    counted = [r for r in method(validation, "count").runs if r.case]
    assert [(r.step, r.case) for r in counted[:2]] == [(1, "zeros"), (2, "zeros")]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_strided_tensors_are_read_as_they_are_meant(layout, monkeypatch):
    image = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    program = exported(Conv(), image.to(memory_format=layout))
    pte = write(
        "conv.pte", lowered({"run": exported(Conv(), image.to(memory_format=layout))}).buffer
    )
    example = InputSet((image,), {}, "example 0")
    config = {"inputs": 0, "cases": ["strided"]}
    validation = validated(pte, program, [example], **config)
    assert validation.failures == ()
    assert len(method(validation, "run").runs) == 1 + len(VIEWS)

    # ExecuTorch's runtime alone misreads them.
    monkeypatch.setattr(bindings, "_lay_out", lambda value, order: value)
    validation = validated(pte, program, [example], **config)
    failing = {f.partition(": strided, ")[2].partition(",")[0] for f in validation.failures}
    assert "other memory format" in failing
    ((name, inputs),) = method(validation, "run").failing
    assert name == "run" and inputs.case == "strided"


def test_what_the_source_refuses_of_strided_tensors_is_skipped_and_told():
    def flat(x):
        return x.view(-1) * 2

    program = unary(flat, torch.ones(4, 4))
    pte = write("flat.pte", lowered({"run": unary(flat, torch.ones(4, 4))}).buffer)
    validation = validated(pte, program, cases=["strided"])
    assert validation.ok
    skipped = dict(method(validation, "run").skipped)
    assert any("transposed" in origin and "view size is not" in r for origin, r in skipped.items())


def test_cases_do_not_change_the_figures_of_a_method():
    program = unary(lambda x: torch.exp(x) / 3)
    pte = write("third.pte", lowered({"run": unary(lambda x: torch.exp(x) / 3)}).buffer)
    plain, cased = validated(pte, program, cases=()), validated(pte, program, rtol=1e-3)
    assert cased.failures == ()
    assert len(cased.methods[0].runs) > len(plain.methods[0].runs)
    assert cased.methods[0].worst() == plain.methods[0].worst()


# Limits


NUMBERS = st.floats(0, 1e6)
SHARES = st.none() | st.floats(0, 1)
FIGURES = dict.fromkeys(LIMITS, st.none() | NUMBERS) | {
    "atol": NUMBERS, "rtol": NUMBERS, "min_cosine": SHARES, "min_agreement": SHARES
}  # fmt: skip


@given(st.builds(Limits, **FIGURES), st.floats(0, 1e9))
def test_growth_makes_no_limit_stricter(limits, growth):
    wider = scale_limits(limits, growth)
    for name in LIMITS:
        before, after = getattr(limits, name), getattr(wider, name)
        if name in ("atol", "max_mean_abs", "max_p999_abs") and before is not None:
            assert after == before * max(growth, 1)
        else:
            assert after == before


def test_figures_of_noise_do_not_count():
    limits = Limits(
        atol=1e-5, rtol=0.0, max_relative=1e-3, min_sqnr=60.0, min_cosine=0.9, min_agreement=0.9
    )
    noise, other = torch.tensor([[1e-9, 2e-9]]), torch.tensor([[3e-9, -1e-9]])
    assert list(check_limits(compare(other, noise), other, noise, limits))
    eased = drop_limits_of_noise(limits, noise)
    assert not list(check_limits(compare(other, noise), other, noise, eased))
    far = noise + 1
    assert drop_limits_of_noise(limits, far) is limits
    assert list(check_limits(compare(far, noise), far, noise, eased))
    assert drop_limits_of_noise(limits, 3) is limits


# Config


def select_cases(validate=None, **quantize):
    run = {"partitioners": ["xnnpack"], **({"quantize": quantize} if quantize else {})}
    data = {"model": "m", "methods": {"run": run}, "validate": validate or {}}
    return parse_config("p", data, "p.yaml").select_cases("run")


def test_the_cases_of_a_method():
    static, dynamic = {"quantizer": "xnnpack"}, {"quantizer": "xnnpack", "dynamic": True}
    assert select_cases() == ("zeros", "large", "limits", "strided", "expanded")
    assert select_cases(**static) == ("strided",)
    assert select_cases(**dynamic) == ("zeros", "limits", "strided", "expanded")
    assert select_cases({"cases": []}) == ()
    assert select_cases({"cases": ["large", "zeros"]}, **static) == ("zeros", "large")
    own = {"cases": ["zeros"], "methods": {"run": {"cases": ["large"]}}}
    assert select_cases(own) == ("large",)
