"""Recorded outputs: files that are compared, and files that are invalid."""

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.export import export

from pipeline.features.references.golden import read_golden
from pipeline.program.inputs import InputSet
from pipeline.store.errors import PipelineError
from tests.support.referenced import judge

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Heads(nn.Module):
    def forward(self, x, scale):
        return {"logits": x * scale, "best": (x * scale).argmax(1)}, x.to(torch.bfloat16)


PROGRAM = export(Heads(), (X, torch.ones(())))
EXAMPLES = [InputSet((X + n, torch.tensor(float(n)))) for n in range(1, 3)]


def outputs():
    """The method's outputs on its examples, stacked, as training would have recorded them."""
    calls = [Heads()(*inputs.args) for inputs in EXAMPLES]
    return {
        "output[0]['logits']": torch.stack([heads["logits"] for heads, _ in calls]),
        "output[0]['best']": torch.stack([heads["best"] for heads, _ in calls]),
        "output[1]": torch.stack([x for _, x in calls]),
    }


def inputs():
    columns = zip(*(each.args for each in EXAMPLES), strict=True)
    return dict(zip(("x", "scale"), map(torch.stack, columns), strict=True))


def write(folder, tensors, suffix=".safetensors"):
    path = folder / f"heads{suffix}"
    if suffix == ".npz":
        numpy.savez(path, **{name: tensor.float().numpy() for name, tensor in tensors.items()})
    else:
        save_file(tensors, path)
    return path.name


def read(folder, name, examples=EXAMPLES):
    return read_golden(folder, name, "heads", PROGRAM, examples)


def judged(recording, **settings):
    return judge({"heads": recording}, {"heads": PROGRAM}, settings=settings)["heads"]


def test_outputs_of_the_examples_are_compared(tmp_path):
    result = judged(read(tmp_path, write(tmp_path, outputs())))
    assert not result.failures
    assert result.reference["verdict"] == "passed"
    assert (result.reference["compared"], result.reference["calls"]) == (["heads.safetensors"], 2)


def test_a_file_may_hold_the_inputs_too(tmp_path):
    name = write(tmp_path, outputs() | inputs())
    assert not judged(read(tmp_path, name, examples=[])).failures


def test_bfloat16_stands_as_float32_in_arrays(tmp_path):
    """Integers aren't stored this way."""
    failures = judged(read(tmp_path, write(tmp_path, outputs(), ".npz"))).failures
    assert {failure["output"] for failure in failures} == {"output[0]['best']"}
    assert "dtype int64, must be float32" in failures[0]["what"]


def test_bfloat16_arguments_stand_as_float32_in_arrays_too(tmp_path):
    program = export(nn.ReLU(), (X.to(torch.bfloat16),))
    batches = X.to(torch.bfloat16).float()[None].numpy()
    numpy.savez(tmp_path / "relu.npz", input=batches, output=batches.clip(0))
    recording = read_golden(tmp_path, "relu.npz", "relu", program, [])
    assert not judge({"relu": recording}, {"relu": program})["relu"].failures


def test_a_file_without_batches_is_a_mistake(tmp_path):
    empty = {name: tensor[:0] for name, tensor in (outputs() | inputs()).items()}
    with pytest.raises(PipelineError, match=r"^heads.safetensors: contains no batches$"):
        read(tmp_path, write(tmp_path, empty))


def test_a_mistake_in_the_inputs_begins_with_the_file(tmp_path):
    """The caller that reports it adds the method."""
    wrong = inputs() | {"x": inputs()["x"][:, 0].contiguous()}
    with pytest.raises(PipelineError, match=r"^heads.safetensors\[0\]: argument 'x': rank 1"):
        read(tmp_path, write(tmp_path, outputs() | wrong))


def test_an_export_that_diverges_from_them_fails(tmp_path):
    tensors = outputs()
    tensors["output[0]['logits']"][1, 1, 2] += 0.5
    (failure,) = judged(read(tmp_path, write(tmp_path, tensors))).failures
    assert failure["inputs"] == EXAMPLES[1].origin
    assert failure["what"].startswith(
        "the export differs from heads.safetensors: absolute error 0.5"
    )


OTHER_METHOD = {"methods": {"other": {"reference": {"atol": 0.1}}}}


def near_outputs():
    """Outputs that another framework may have recorded: none exact, none far off."""
    tensors = outputs()
    tensors["output[0]['logits']"] += 0.02
    return tensors


@pytest.mark.parametrize(
    ("settings", "set_at"),
    [
        ({"reference": {"atol": 0.05}}, ["validate.reference.atol"]),
        (
            {"reference": {"atol": 0.01}, "methods": {"heads": {"reference": {"atol": 0.05}}}},
            ["validate.methods.heads.reference.atol"],
        ),
    ],
)
def test_the_config_limits_how_far_recorded_outputs_may_differ(settings, set_at, tmp_path):
    result = judged(read(tmp_path, write(tmp_path, near_outputs())), **settings)
    assert not result.failures
    assert result.reference["limits"] == {"atol": 0.05, "rtol": 0.001}
    assert result.reference["limits_from"] == set_at
    assert 0.3 < result.reference["of_limit"] < 0.5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "(set validate.reference.atol if the recording may differ by more)"),
        ({"atol": 1.0}, "(set validate.reference.atol if the recording may differ by more)"),
        (OTHER_METHOD, "(set validate.reference.atol if the recording may differ by more)"),
        ({"reference": {"atol": 0.01}}, "(validate.reference.atol)"),
        (
            {"reference": {"min_sqnr": 60.0}},
            "(derived from rounding; set validate.reference.atol to replace it)",
        ),
        ({"reference": {"min_sqnr": 60.0, "atol": 1.0}}, "(validate.reference.atol, "),
    ],
)
def test_a_recording_beyond_its_limits_says_where_they_are_set(settings, said, tmp_path):
    """Limits of the package and of other methods don't count."""
    failures = judged(read(tmp_path, write(tmp_path, near_outputs())), **settings).failures
    assert all(said in failure["what"] for failure in failures)
    assert failures


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("output[1]"), "output 'output[1]' is missing"),
        (lambda t: t.update(logits=X), "'logits' is neither an output nor an argument"),
        (lambda t: t.update({"output[1]": t["output[1]"][:1]}), "1 batches, must be 2"),
        (lambda t: t.update(x=torch.stack([X, X])), "argument 'scale' is missing"),
        (lambda t: t.update({k: v[:1] for k, v in t.items()}), "1 batches of outputs, 2 examples"),
    ],
)
def test_a_file_of_another_form_is_a_mistake(change, said, tmp_path):
    tensors = outputs()
    change(tensors)
    name = write(tmp_path, {key: tensor.contiguous() for key, tensor in tensors.items()})
    with pytest.raises(PipelineError, match=r"heads\.safetensors") as caught:
        read(tmp_path, name)
    assert said in str(caught.value)


class Total(nn.Module):
    """Its output depends on all calls so far."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        return self.total.add_(x) + 0


def read_totals(folder, inputs, output, examples=()):
    """Read and judge the recorded outputs of a method with state."""
    save_file({**inputs, "output": output}, folder / "total.safetensors")
    program = export(Total(), (torch.ones(3),))
    recording = read_golden(folder, "total.safetensors", "total", program, examples)
    return judge({"total": recording}, {"total": program})["total"]


STEPS = torch.arange(18.0).reshape(2, 3, 3)  # two sequences of three calls


def test_a_file_holds_the_calls_of_a_sequence_in_order(tmp_path):
    result = read_totals(tmp_path, {"x": STEPS}, STEPS.cumsum(1))
    assert not result.failures
    assert result.reference["calls"] == 6
    wrong = STEPS.cumsum(1)
    wrong[1, 2, 0] += 1
    (failure,) = read_totals(tmp_path, {"x": STEPS}, wrong).failures
    assert failure["inputs"] == "total.safetensors[5] (call 3 from total.safetensors[3])"


def test_without_a_dimension_of_steps_each_call_begins_anew(tmp_path):
    assert not read_totals(tmp_path, {"x": STEPS[0]}, STEPS[0].clone()).failures
    assert read_totals(tmp_path, {"x": STEPS[0]}, STEPS[0].cumsum(0)).failures


def test_outputs_of_sequences_may_belong_to_the_examples(tmp_path):
    examples = [InputSet((x,)) for x in STEPS.flatten(0, 1)]
    assert not read_totals(tmp_path, {}, STEPS.cumsum(1), examples).failures


@pytest.mark.parametrize("output", [STEPS.flatten(0, 1), STEPS.cumsum(1)[:, :2]])
def test_all_tensors_have_the_same_sequences(output, tmp_path):
    with pytest.raises(PipelineError, match=r"holds 2 sequences of \d calls, .* not; all tensors"):
        read_totals(tmp_path, {"x": STEPS}, output.clone())


class AddOne(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


@pytest.mark.parametrize(
    ("changed", "failing"),
    [({}, []), ({"input 'x' after the call": X + 1}, []), ({"input 'x' after the call": X}, [""])],
)
def test_inputs_that_a_method_changes_may_be_recorded(changed, failing, tmp_path):
    tensors = {"output": (X + 1) * 2, **changed}
    save_file(
        {name: value[None].clone() for name, value in tensors.items()}, tmp_path / "a.safetensors"
    )
    program = export(AddOne(), (X.clone(),))
    recording = read_golden(tmp_path, "a.safetensors", "a", program, [InputSet((X,))])
    failures = judge({"a": recording}, {"a": program})["a"].failures
    assert [failure["output"] for failure in failures] == failing


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path):
    (tmp_path / "heads.npz").write_bytes(b"none")
    with pytest.raises(PipelineError, match=r"heads.npz: cannot be read as a .npz file"):
        read(tmp_path, "heads.npz")
