"""Methods that train, which return gradients and parameters after the user's outputs: how they are
validated, called and located."""

import copy

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch.export import export
from torch.export.experimental import _export_forward_backward

from pipeline.config.validation import ValidateConfig
from pipeline.devices.interface import PackageFiles
from pipeline.features.loading.load_package import LoadedPackage
from pipeline.program.archive import load_program, save_programs
from pipeline.program.recorded_signature import record_signature
from pipeline.program.training import training_methods
from pipeline.store.errors import PipelineError
from pipeline.validate.package import validate_package
from tests.support.located import build
from tests.support.signatures import make_method_spec


class Net(nn.Module):
    def __init__(self, seed, counts=False):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.rand(3))
        self.register_buffer("steps", torch.zeros(()))
        self.counts = counts

    def forward(self, x, y):
        if self.counts:
            self.steps.add_(1)
        out = torch.tanh(self.layer(x)) * self.scale
        return {"loss": ((out - y) ** 2).mean() / (1 + self.steps), "out": out.detach()}


def joint(tmp_path, seed=0, counts=False, of_inputs=False):
    """Return the program as an action loads it."""
    x = torch.randn(2, 3)
    given = (x.clone().requires_grad_(of_inputs), x)
    program = _export_forward_backward(export(Net(seed, counts), given))
    path = tmp_path / f"{seed}{counts}.pt2"
    save_programs({"train": program}, path)
    return load_program(path, "train")


def packed(program, tmp_path):
    pte = tmp_path / "train.pte"
    lowered = to_edge_transform_and_lower({"train": copy.deepcopy(program)})
    pte.write_bytes(lowered.to_executorch().buffer)
    return pte


def validate(program, pte):
    return validate_package(pte, (), {"train": program}, {}, ValidateConfig(inputs=1, seed=3), {})


def test_loss_gradients_parameters_and_where_they_begin_are_validated(tmp_path):
    program = joint(tmp_path, of_inputs=True)
    pte = packed(program, tmp_path)
    validation = validate(program, pte)
    assert validation.ok, validation.failures
    assert [m.kind for m in validation.methods] == ["program", *["constant"] * 3]
    names = ["scale", "layer.weight", "layer.bias"]
    assert validation.methods[0].outputs == (
        "output['loss']",
        "output['out']",
        *(f"gradient of parameter '{name}'" for name in names),
        "gradient of input 'x'",
        *(f"parameter '{name}'" for name in names),
    )
    assert training_methods("train", program) == {
        "__et_training_gradients_index_train": 2,
        "__et_training_parameters_index_train": 6,
        "__et_training_fqn_train": names,
    }
    spec = {"train": record_signature(program)}
    package = LoadedPackage(PackageFiles.of(pte), spec)
    x = torch.randn(2, 3)
    result = package.train(x, x)
    assert [*result] == ["outputs", "gradients", "input_gradients", "parameters"]
    net = Net(0)
    wanted = net(x, x)["loss"]
    wanted.backward()
    assert torch.allclose(result["outputs"]["loss"], wanted)
    for name, parameter in net.named_parameters():
        assert torch.allclose(result["gradients"][name], parameter.grad, atol=1e-6)
        assert torch.equal(result["parameters"][name], parameter)


def test_other_weights_and_gradients_fail_by_their_names(tmp_path):
    program = joint(tmp_path)
    validation = validate(program, packed(joint(tmp_path, seed=1), tmp_path))
    failed = {failure["output"] for failure in validation.methods[0].failures}
    assert {"gradient of parameter 'scale'", "parameter 'layer.weight'"} <= failed


def test_where_a_gradient_diverges_first(tmp_path):
    program = joint(tmp_path)
    x = torch.randn(2, 3)
    made = build({"train": program})
    weight = bytes(Net(0).layer.weight.detach().numpy().tobytes())
    assert made.pte.count(weight) == 1
    damaged = made.pte.replace(weight, weight[:-4] + bytes(4))
    located = made.located("train", (x, x), pte=damaged)
    # The first operator that reads the weight: a linear layer is a permute of it and an addmm.
    assert [culprit["operator"] for culprit in located.culprits] == ["aten.permute.default"]


def test_indices_that_count_changed_buffers_fail(tmp_path):
    """Counted as ExecuTorch 1.4.1 counts them, its training extension takes the first gradient for
    an output."""
    program = joint(tmp_path, counts=True)
    validation = validate(program, packed(program, tmp_path))
    assert [m.method for m in validation.methods if not m.ok] == [
        "__et_training_gradients_index_train",
        "__et_training_parameters_index_train",
    ]
    assert "returns 3, must return 2; ExecuTorch counts changed buffers" in validation.failures[0]


def test_a_call_that_lacks_gradients_is_refused(tmp_path):
    spec = make_method_spec(joint(tmp_path))
    with pytest.raises(PipelineError, match="returns 2 outputs, must return 8"):
        spec.nested_outputs([torch.zeros(2, 3)] * 2, [torch.zeros(())] * 2)
