"""A quantized package is judged against its quantized program."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline import moments
from pipeline.config.validation import ValidateConfig
from pipeline.features.quantization_loss.judge import QuantizationJudge
from pipeline.program.inputs import InputSet
from pipeline.validate.call_judge import compare_outputs
from pipeline.validate.default_limits import LEAST_SQNR
from pipeline.validate.package import validate_package
from tests.devices.test_bindings import lowered, write

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Rounded(nn.Module):
    """Rounds its input to steps of 1 / `steps`, as a quantization would; without `steps`, not."""

    def __init__(self, steps=None):
        super().__init__()
        self.steps = steps

    def forward(self, x):
        return x * 1.0 if self.steps is None else torch.round(x * self.steps) / self.steps


def program(module):
    return export(module, (X,))


def sets(*factors):
    return [InputSet((X * factor,), {}, f"example {n}") for n, factor in enumerate(factors)]


def validated(made, quantized, examples=(), divergences=None, not_run=None, without=(), **settings):
    """Return the validation of a package of `made`, whose float program doesn't round."""
    pte = write("rounded.pte", lowered({"run": program(made)}).buffer)
    return validate_package(
        pte,
        (),
        {"run": program(Rounded())},
        {"run": examples},
        ValidateConfig(**{"inputs": 2} | settings),
        {},
        not_run,
        quantized={"run": program(quantized)},
        divergences=divergences,
        without_examples=without,
    )


def verdicts(validation):
    (method,) = validation.methods
    return method.verdict, method.quantization["verdict"]


@pytest.mark.parametrize("settings", [{}, {"atol": 1.0}], ids=["derived", "config"])
def test_a_package_is_held_to_the_quantized_program_too(settings):
    right = validated(Rounded(4), Rounded(4), **settings)
    assert right.ok
    (record,) = right.to_json()["methods"]
    assert record["limits_from"] == "quantized"
    assert record["quantized"]["sqnr_db"] == "inf"
    assert record["quantized"]["limits"]["min_sqnr"] > 10
    failures = validated(Rounded(2), Rounded(4), sets(1.0), **settings).failures
    assert any(each.startswith("run: example 0, output: SQNR ") for each in failures)
    about = ", against its quantized program"
    assert any(each.endswith(about) for each in failures)


def test_a_method_that_did_not_run_is_not_held_to_its_quantized_program():
    assert validated(Rounded(2), Rounded(4), inputs=0).failures == (
        "run: no input set ran: provide examples, or let inputs be generated",
    )


def test_an_example_that_does_not_fit_fails_once():
    wrong = [InputSet((X.double(),), {}, "example 0")]
    assert len(validated(Rounded(4), Rounded(4), wrong).failures) == 1


def test_a_quantization_without_a_limit_is_not_judged_and_shows_its_figures():
    validation = validated(Rounded(4), Rounded(4), sets(1.0, 2.0))
    assert verdicts(validation) == ("passed", "not judged")
    record = validation.methods[0].quantization
    assert "`min_sqnr` or `min_agreement`" in record["reason"]
    assert record["examples"][0]["calls"] == 2 and record["generated"]


@pytest.mark.parametrize(("least", "verdict"), [(10.0, "passed"), (40.0, "failed")])
def test_a_limit_judges_it_on_the_examples(least, verdict):
    validation = validated(Rounded(4), Rounded(4), sets(1.0), min_sqnr=least)
    assert verdicts(validation) == ("passed", verdict)
    assert validation.ok == (verdict == "passed")


def test_noise_never_decides_alone():
    """On generated inputs the noise saturates, as it does outside the observed range."""
    for settings in ({}, {"min_sqnr": 60.0}):
        validation = validated(Rounded(1), Rounded(1), **settings)
        assert verdicts(validation) == ("passed", "not judged")
        assert validation.methods[0].quantization["reason"].startswith("no examples")
    tiny = validated(Rounded(64), Rounded(64), sets(1e-3), inputs=0)
    assert verdicts(tiny)[1] == "failed"  # as it does on an example


def add(judge, actual, expected):
    judge.add(actual, expected, compare_outputs(actual, expected), generated=False)


def test_the_floor_holds_over_all_values_of_all_examples_however_few():
    few = [InputSet((X * factor,), {}, f"example {n}") for n, factor in enumerate((0.1, 0.2))]
    validation = validated(Rounded(1), Rounded(1), few)
    assert verdicts(validation) == ("passed", "failed")
    (failure,) = validation.failures
    assert f"below {LEAST_SQNR:g} dB: noise at half the level of the signal" in failure
    judge = QuantizationJudge(["output"], ValidateConfig().select_limits("run"))
    add(judge, [torch.zeros(2)], [torch.ones(2)])
    assert [output for output, _ in judge.find_divergences()] == ["output"]
    add(judge, [torch.ones(100)], [torch.ones(100)])
    assert not judge.find_divergences()  # by chance, one call in many may be near zero


def test_agreement_holds_over_all_examples_together():
    limits = ValidateConfig(min_agreement=0.6).select_limits("run")
    judge = QuantizationJudge(["output"], limits)
    right, other = torch.tensor([[1.0, 3.0]]), torch.tensor([[4.0, 3.0]])
    for actual in (right, right, other):
        add(judge, [actual], [right])
    assert judge.find_divergences() == []
    add(judge, [other], [right])
    ((_, fault),) = judge.find_divergences()
    assert "in 2 of 4 rows of the examples is below 0.6" in fault


def test_a_wrong_transformation_is_told_from_noise():
    diverges = "with observers alone it diverges from the float program"
    validation = validated(Rounded(64), Rounded(64), sets(1.0), {"run": diverges}, min_sqnr=10)
    assert verdicts(validation) == ("passed", "failed")
    assert diverges in validation.failures[0]


PHONE = {"run": "needs a phone"}


def test_a_method_that_this_machine_can_not_run_has_its_quantization_judged():
    validation = validated(Rounded(4), Rounded(4), sets(1.0), not_run=PHONE, min_sqnr=10.0)
    assert verdicts(validation) == ("not run", "passed")


def test_examples_that_were_left_out_leave_it_without_a_verdict():
    judge = QuantizationJudge(["output"], ValidateConfig(min_sqnr=10.0).select_limits("run"))
    add(judge, [X], [X])
    assert judge.judge(False)["verdict"] == "passed"
    record = judge.judge(False, left_out=3)
    assert record["verdict"] == "not judged"
    assert record["reason"].startswith("validate.budget was exhausted before 3 examples ran")


def test_limits_hold_where_the_package_can_not_run():
    """The quantized program takes its place, and every limit still applies."""
    for settings in ({"min_sqnr": 60.0}, {"atol": 1e-9}, {"min_cosine": 0.9999999}):
        validation = validated(Rounded(4), Rounded(4), sets(1.0), not_run=PHONE, **settings)
        assert verdicts(validation) == ("not run", "failed")


def test_the_arguments_of_an_export_are_no_examples():
    validation = validated(Rounded(4), Rounded(4), sets(1.0), without={"run"}, min_sqnr=10.0)
    assert verdicts(validation)[1] == "not judged"
    assert "the arguments of an export" in validation.methods[0].quantization["reason"]


@pytest.mark.parametrize(
    ("value", "limits", "verdict"),
    [
        (torch.ones(3, 1), {"min_agreement": 1.0}, "not judged"),  # one value has no maximum
        (torch.ones(3, 1), {"min_sqnr": 10.0}, "passed"),
        (torch.zeros(3, 4), {"min_sqnr": 10.0}, "not judged"),
        (torch.full((3, 4), torch.nan), {"min_sqnr": 10.0}, "not judged"),
        (torch.arange(4), {"min_sqnr": 10.0}, "passed"),  # exact
    ],
    ids=["one column", "regression", "zeros", "nan", "integers"],
)
def test_a_limit_that_says_nothing_of_an_output_does_not_judge_it(value, limits, verdict):
    judge = QuantizationJudge(["output"], ValidateConfig(**limits).select_limits("run"))
    add(judge, [value], [value])
    assert judge.judge(False)["verdict"] == verdict


def test_equal_integers_count_as_agreement():
    judge = QuantizationJudge(["o"], ValidateConfig(min_agreement=0.7).select_limits("run"))
    add(judge, [torch.tensor([1, 2, 3, 4])], [torch.tensor([1, 2, 3, 0])])
    assert judge.find_divergences() == [] and judge.judge(False)["verdict"] == "passed"
    add(judge, [torch.tensor([1, 2])], [torch.tensor([0, 0])])
    ((_, fault),) = judge.find_divergences()
    assert "3 of 6" in fault


class Chosen(nn.Module):
    def __init__(self, steps=None):
        super().__init__()
        self.rounded = Rounded(steps)

    def forward(self, x):
        return self.rounded(x).argmax(-1)


def test_integers_that_quantization_moves_fail_by_the_limits_of_the_config_alone():
    pte = write("chosen.pte", lowered({"run": program(Chosen(1))}).buffer)
    for settings, verdict in (
        ({}, "not judged"),
        ({"min_agreement": 0.2}, "passed"),
        ({"min_agreement": 1.0}, "failed"),
    ):
        (method,) = validate_package(
            pte,
            (),
            {"run": program(Chosen())},
            {"run": sets(0.3)},
            ValidateConfig(**settings),
            {},
            quantized={"run": program(Chosen(1))},
        ).methods
        assert method.quantization["verdict"] == verdict, method.failures
        assert method.verdict == "passed"


def test_tolerances_of_the_config_decide_what_a_backend_quantizes_more():
    """OpenVINO does so with activations: within quantization noise, but beyond rounding."""
    for settings, expected in (
        ({"atol": 1.0, "rtol": 0.0}, ("passed", "passed")),
        ({"atol": 1e-6, "rtol": 0.0}, ("not judged", "failed")),
        ({}, ("failed", "not judged")),
    ):
        validation = validated(Rounded(4.1), Rounded(4), sets(1.0), inputs=0, **settings)
        assert verdicts(validation) == expected, validation.failures


@pytest.mark.parametrize(
    ("factors", "inputs", "verdict"),
    [
        ((1.0, 1.01), 0, "not judged"),  # 40 dB apart
        ((1.0, -1.0), 0, "passed"),
        ((1.0, 1.01), 2, "passed"),  # generated inputs move it
    ],
)
def test_limits_that_no_call_could_exceed_judge_no_quantization(factors, inputs, verdict):
    settings = {"min_sqnr": 20.0, "inputs": inputs}
    (method,) = validated(Rounded(64), Rounded(64), sets(*factors), **settings).methods
    assert method.quantization["verdict"] == verdict
    if verdict == "not judged":
        assert "its limits could not fail for output" in method.quantization["reason"]


def test_without_the_feature_a_package_is_held_to_the_quantized_program_alone(monkeypatch):
    features = [f for f in moments.find_features() if not f.judge_quantization]
    monkeypatch.setattr(moments, "find_features", lambda: features)
    (right,) = validated(Rounded(4), Rounded(4), examples=sets(1), min_sqnr=200.0).methods
    assert right.verdict == "passed" and right.ok
    assert right.quantization["verdict"] == "not run"
    assert "quantization_loss" in right.quantization["reason"]
    assert right.to_json()["runs"][0]["outputs"][0]["max_abs"] > 0
    (wrong,) = validated(Rounded(), Rounded(4), examples=sets(1)).methods
    assert wrong.verdict == "failed"


class Choosing(nn.Module):
    """Chooses classes and masks from its input, which a quantization rounds."""

    def __init__(self, function, steps=None):
        super().__init__()
        self.function = function
        self.steps = steps

    def forward(self, x):
        x = x * 1.0 if self.steps is None else torch.round(x * self.steps) / self.steps
        return self.function(x)


CHOICES = {
    "mask": lambda x: x > 0.26,
    "mask of integers": lambda x: (x > 0.26).long(),
    "class": lambda x: x.argmax(1),
    "offset class": lambda x: x.argmax(1) + 1,
    "places": lambda x: x.topk(2).indices,
    "place of the least": lambda x: x.min(1).indices,
}
AMOUNTS = {
    "image": lambda x: (x * 10).to(torch.int32),
    "count": lambda x: (x > 0.26).sum(1),
    "greatest": lambda x: (x * 10).to(torch.int32).amax(1),
}


def chosen(function, **settings):
    examples = [InputSet((x,), {}, f"example {n}") for n, x in enumerate(random_inputs(4))]
    float_program = export(Choosing(function), (X,))
    quantized = export(Choosing(function, 4), (X,))
    pte = write("chosen.pte", lowered({"run": quantized}).buffer)
    config = ValidateConfig(**{"inputs": 0, "cases": []} | settings)
    programs = {"run": float_program}
    return validate_package(
        pte, (), programs, {"run": examples}, config, {}, quantized={"run": quantized}
    )


def random_inputs(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 8, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("function", CHOICES.values(), ids=CHOICES)
def test_distances_between_choices_mean_nothing(function):
    validation = chosen(function, min_sqnr=60, min_agreement=0.7)
    assert verdicts(validation) == ("passed", "passed")
    (unfit,) = chosen(function, min_sqnr=60).methods
    assert unfit.quantization["verdict"] == "not judged"
    assert "set `min_agreement`, since distances" in unfit.quantization["reason"]
    assert verdicts(chosen(function, min_agreement=1))[1] == "failed"


@pytest.mark.parametrize("function", AMOUNTS.values(), ids=AMOUNTS)
def test_distances_between_amounts_count(function):
    assert verdicts(chosen(function, min_sqnr=60))[1] == "failed"
    assert verdicts(chosen(function, min_sqnr=5))[1] == "passed"


def test_an_agreement_that_could_not_fail_is_not_judged():
    rare = CHOICES["mask"], lambda x: x > 1.3
    assert verdicts(chosen(rare[0], min_agreement=0.8))[1] == "passed"
    (method,) = chosen(rare[1], min_agreement=0.8).methods
    assert method.quantization["verdict"] == "not judged"
    assert method.quantization["reason"].startswith("its limits could not fail for output")


@pytest.mark.parametrize("limit", [{"atol": 1.0}, {"max_mean_abs": 1.0}, {"max_p999_abs": 1.0}])
def test_a_distance_that_no_mask_exceeds_is_not_judged(limit):
    for limits, verdict in ((limit, "not judged"), (dict.fromkeys(limit, 1e-3), "failed")):
        (method,) = chosen(CHOICES["mask"], **limits).methods
        assert method.quantization["verdict"] == verdict
        could_not_fail = "its limits could not fail for output" in method.quantization["reason"]
        assert could_not_fail == (verdict == "not judged")


def test_the_reason_says_that_all_examples_are_equal():
    (equal,) = validated(Rounded(4), Rounded(4), sets(1.0, 1.0), min_sqnr=5).methods
    assert "on examples (2 calls, all on equal inputs): SQNR" in equal.quantization["reason"]
    (other,) = validated(Rounded(4), Rounded(4), sets(1.0, 2.0), min_sqnr=5).methods
    assert "on examples (2 calls): SQNR" in other.quantization["reason"]


def test_the_reason_has_the_noise_of_amounts():
    (method,) = chosen(AMOUNTS["image"], min_sqnr=5).methods
    assert "on examples (4 calls): SQNR" in method.quantization["reason"]
