"""Recorded outputs: files that are compared, and files that are not what they should be."""

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.export import export

from pipeline.program.golden import read_golden
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
    """What the method gives on its examples, stacked, as training would have recorded it."""
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


def judged(recording):
    return judge({"heads": recording}, {"heads": PROGRAM})["heads"]


def test_outputs_of_the_examples_are_compared(tmp_path):
    result = judged(read(tmp_path, write(tmp_path, outputs())))
    assert not result.failures
    assert result.reference["verdict"] == "passed"
    assert (result.reference["compared"], result.reference["calls"]) == (["heads.safetensors"], 2)


def test_a_file_may_hold_the_inputs_too(tmp_path):
    name = write(tmp_path, outputs() | inputs())
    assert not judged(read(tmp_path, name, examples=[])).failures


def test_bfloat16_stands_as_float32_in_arrays(tmp_path):
    """Integers do not."""
    failures = judged(read(tmp_path, write(tmp_path, outputs(), ".npz"))).failures
    assert {failure.output for failure in failures} == {"output[0]['best']"}
    assert "dtype int64, must be float32" in failures[0].what


def test_bfloat16_arguments_stand_as_float32_in_arrays_too(tmp_path):
    program = export(nn.ReLU(), (X.to(torch.bfloat16),))
    batches = X.to(torch.bfloat16).float()[None].numpy()
    numpy.savez(tmp_path / "relu.npz", input=batches, output=batches.clip(0))
    recording = read_golden(tmp_path, "relu.npz", "relu", program, [])
    assert not judge({"relu": recording}, {"relu": program})["relu"].failures


def test_a_file_without_batches_is_a_mistake(tmp_path):
    empty = {name: tensor[:0] for name, tensor in (outputs() | inputs()).items()}
    with pytest.raises(PipelineError, match=r"^heads.safetensors: holds no batches$"):
        read(tmp_path, write(tmp_path, empty))


def test_a_mistake_in_the_inputs_begins_with_the_file(tmp_path):
    """Who reports it names the method."""
    wrong = inputs() | {"x": inputs()["x"][:, 0].contiguous()}
    with pytest.raises(PipelineError, match=r"^heads.safetensors\[0\]: argument 'x': rank 1"):
        read(tmp_path, write(tmp_path, outputs() | wrong))


def test_an_export_that_departs_from_them_fails(tmp_path):
    tensors = outputs()
    tensors["output[0]['logits']"][1, 1, 2] += 0.5
    (failure,) = judged(read(tmp_path, write(tmp_path, tensors))).failures
    assert failure.inputs == EXAMPLES[1].origin
    assert failure.what.startswith("the export departs from heads.safetensors: absolute error 0.5")


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


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path):
    (tmp_path / "heads.npz").write_bytes(b"none")
    with pytest.raises(PipelineError, match=r"heads.npz: cannot be read as a .npz file"):
        read(tmp_path, "heads.npz")
