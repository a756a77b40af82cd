"""Facts about a quantization: shares of weights and compute, and what stayed in floating point."""

import pytest
import torch
from torch.export import Dim, export

from pipeline.features.lowering_warnings.warnings import warn_of_quantization
from pipeline.features.quantization.facts import describe_quantization
from pipeline.features.quantization.multiplications import count_multiplications
from pipeline.features.quantization.prepared import PreparedComparison
from pipeline.features.quantization.quantize import QuantizationNotes, quantize
from pipeline.features.quantization.warnings import find_warnings
from pipeline.moments import show_error
from pipeline.program.graphs import find_origins, iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.store.errors import PipelineError
from pipeline.store.forms import check_of
from pipeline.store.quantized import QUANTIZATION_FACTS
from tests.features.quantization.test_quantize import make_method_spec


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(16, 32, batch_first=True)
        self.head, self.tail = torch.nn.Linear(32, 8), torch.nn.Linear(8, 8, bias=False)
        self.register_buffer("seen", torch.zeros(1, 4, 8))

    def forward(self, x):
        y = self.tail(self.head(self.lstm(x)[0]))
        self.seen.copy_(y)
        return y


STATIC = {"quantizer": "xnnpack"}
DYNAMIC = {"quantizer": "xnnpack", "dynamic": True}


def describe(model, args, count=2, **options):
    """Return the facts of a quantized model, and what was watched."""
    torch.manual_seed(0)
    program = export(model.eval().requires_grad_(False), args)
    spec, notes = make_method_spec(**options), QuantizationNotes()
    inputs = [InputSet(args, {}, f"x[{n}]") for n in range(count)] if spec.calibrates else []
    quantized = quantize(program, spec, inputs, notes=notes)
    source = {"source": "files" if inputs else "none", "inputs": len(inputs)}
    origins = find_origins(quantized, program)
    facts = describe_quantization(program, quantized, spec, origins, source, notes.observers)
    assert check_of(QUANTIZATION_FACTS)(facts)
    return facts, notes


def test_weights_of_an_lstm_show_up():
    facts, _ = describe(Recurrent(), (torch.randn(1, 4, 16),), **STATIC, modules={"tail": "none"})
    recurrent, linears = 4 * 32 * (16 + 32), (32 * 8, 8 * 8)
    biases = 2 * 4 * 32 + 8
    assert facts["weights"] == {
        "bytes": 4 * (recurrent + sum(linears) + biases),
        "quantized": 4 * linears[0],
    }
    assert facts["compute"] == {
        "multiplications": 4 * (recurrent + sum(linears)),
        "quantized": 4 * linears[0],
    }
    why = {tensor["name"]: tensor["why"] for tensor in facts["left_float"]}
    assert next(iter(why)) == "lstm.weight_hh_l0"
    assert why["lstm.weight_hh_l0"] == "xnnpack quantizes no lstm in this method"
    assert why["tail.weight"] == "`quantize.modules` leaves tail in floating point"
    assert (
        why["head.bias"] == "belongs to a quantized linear, of which only the weight is quantized"
    )
    assert "seen" not in why  # state isn't a weight
    assert facts["activations"] == ["static"]
    assert facts["calibration"] == {"source": "files", "inputs": 2}


def test_a_row_that_groups_do_not_divide_is_named():
    model = torch.nn.Sequential(torch.nn.Linear(60, 64, bias=False), torch.nn.Linear(64, 8))
    scheme = {"quantizer": "torchao", "scheme": "int8_dynamic_activation_int4_weight"}
    facts, _ = describe(model, (torch.randn(1, 60),), **scheme)
    why = {tensor["name"]: tensor["why"] for tensor in facts["left_float"]}
    assert why["0.weight"] == (
        "group_size 32 does not divide its rows of 60 values; group_size: 0 gives each row one "
        "scale"
    )
    assert "group_size" not in why["1.bias"]  # 64 values are two groups
    facts, _ = describe(model, (torch.randn(1, 60),), **scheme, group_size=0)
    assert [tensor["name"] for tensor in facts["left_float"]] == ["1.bias"]


def test_an_operator_that_an_override_leaves_out():
    model = torch.nn.Sequential(torch.nn.Conv1d(4, 4, 1), torch.nn.Flatten(), torch.nn.Linear(8, 2))
    facts, _ = describe(model, (torch.randn(1, 4, 2),), **STATIC, operators={"linear": "none"})
    why = {tensor["name"]: tensor["why"] for tensor in facts["left_float"]}
    assert why["2.weight"] == "`quantize.operators` leaves linear in floating point"
    assert facts["compute"] == {"multiplications": 32 + 16, "quantized": 32}


LINEAR = (torch.nn.Linear(64, 32, bias=False), (torch.randn(2, 64),))
SCHEMES = {
    "dynamic": (DYNAMIC, ["dynamic"], 1.0),
    "int4": (
        {"quantizer": "torchao", "scheme": "int8_dynamic_activation_int4_weight"},
        ["dynamic"],
        1.0,
    ),
    "weights only": ({"quantizer": "torchao", "scheme": "int8_weight_only"}, [], 0.0),
}


@pytest.mark.parametrize(("options", "activations", "share"), SCHEMES.values(), ids=SCHEMES)
def test_schemes_that_observe_nothing(options, activations, share):
    facts, _ = describe(*LINEAR, **options)
    assert facts["activations"] == activations
    assert facts["weights"] == {"bytes": 4 * 64 * 32, "quantized": 4 * 64 * 32}
    assert facts["compute"] == {"multiplications": 4096, "quantized": int(share * 4096)}
    assert facts["calibration"] == {"source": "none", "inputs": 0}


def test_embeddings_are_counted_as_floats_and_need_no_partitioner():
    facts, notes = describe(
        torch.nn.Embedding(50, 64), (torch.tensor([[1, 2]]),),
        quantizer="torchao", embedding={"bits": 4},
    )  # fmt: skip
    assert facts["weights"] == {"bytes": 4 * 50 * 64, "quantized": 4 * 50 * 64}
    assert notes.prepared is None and facts["observers"] is None
    assert warn_of_quantization(facts, None) == ""


def test_a_method_of_which_nothing_is_quantized_says_so():
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Softmax(-1))
    facts, notes = describe(model, (torch.randn(2, 8),), **STATIC)
    (first, *_) = find_warnings(facts, notes.prepared, 0)
    assert first.startswith("xnnpack quantized none of its weights and none of its compute; leave")
    assert show_error(first, "warning") == f"{first} [PTE377]"


def test_a_quantized_method_without_a_partitioner_says_so():
    facts, _ = describe(*LINEAR, **STATIC)
    assert warn_of_quantization(facts, None).startswith("quantized without a partitioner: portable")


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: x * 2, (x,))


def test_weights_of_control_flow_show_up():
    facts, _ = describe(Branches(), (torch.ones(2, 8),), **STATIC)
    (tensor,) = facts["left_float"]
    assert tensor["why"] == "read in the body of cond, which no quantizer examines"
    assert facts["compute"] == {"multiplications": 128, "quantized": 0}
    assert "its control flow is not quantized: 2 of" in [*find_warnings(facts, None, 2)][-1]


# Observers


def observed(model, *values):
    program = export(model.eval().requires_grad_(False), (values[0],))
    notes = QuantizationNotes()
    quantize(program, make_method_spec(**STATIC), [InputSet((v,)) for v in values], notes=notes)
    return {
        (remark["kind"], remark["value"]): remark for remark in notes.observers["remarks"]
    }, notes


class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * 0.5 + x


def test_an_observer_that_saw_one_value_is_told():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.mul_(0.1)
        model[0].bias.fill_(-9.0)  # the rectifier returns only zeros
    remarks, notes = observed(model, torch.randn(2, 4))
    remark = remarks["one value", "aten.relu in module 1"]
    assert (remark["seen"], remark["range"], remark["module"]) == ([0.0, 0.0], None, "1")
    facts = {"quantizer": "xnnpack", "weights": {"quantized": 1}, "observers": notes.observers}
    (warning,) = find_warnings(facts, notes.prepared, 0)
    assert warning.startswith("1 observer saw one value: aten.relu in module 1; their scales fit")


def test_infinities_are_told():
    value = torch.randn(2, 4)
    value[0, 0] = torch.inf
    remarks, _ = observed(Scaled(), torch.randn(2, 4), value)
    assert remarks["not finite", "input x"]["nonfinite"] == 1


def test_observers_that_cut_off_are_told():
    torch.manual_seed(0)
    values = torch.randn(1000, 1000)
    values[0, 7] = 20.0  # one outlier among a million
    remarks, _ = observed(Scaled(), values)
    remark = remarks["cut off", "input x"]
    assert remark["seen"][1] == 20.0 > 1.5 * remark["range"][1]


def test_scalars_and_usual_values_are_not_remarked():
    remarks, notes = observed(Scaled(), torch.randn(64, 64))
    assert not remarks and notes.observers["count"] > 2


def test_nan_in_calibration_is_explained():
    with pytest.raises(PipelineError, match=r"input x is infinite or NaN on the calibration"):
        observed(Scaled(), torch.full((2, 4), torch.nan))


@pytest.mark.slow
def test_a_prepared_program_that_rounds_is_compared_without_its_observers():
    """Core ML's quantizer prepares fake quantization, which rounds while observing."""
    facts, notes = describe(Recurrent(), (torch.randn(1, 4, 16),), quantizer="coreml")
    assert notes.prepared["agrees"] is True and notes.prepared["calls"] == 2
    assert facts["weights"]["quantized"] == 4 * (32 * 8 + 8 * 8)


# Multiplications

SHAPES = {
    "linear": (torch.nn.Linear(8, 4), (torch.randn(3, 8),), 3 * 8 * 4),
    "grouped convolution": (
        torch.nn.Conv2d(4, 8, 3, groups=2),
        (torch.randn(1, 4, 6, 6),),
        8 * 16 * 2 * 9,
    ),
    "transposed convolution": (
        torch.nn.ConvTranspose1d(4, 8, 3),
        (torch.randn(1, 4, 6),),
        6 * 4 * 8 * 3,
    ),
    "lstm": (torch.nn.LSTM(8, 4), (torch.randn(5, 2, 8),), 5 * 2 * 16 * (8 + 4)),
    "gru": (
        torch.nn.GRU(8, 4, bidirectional=True),
        (torch.randn(5, 2, 8),),
        5 * 2 * 2 * 12 * (8 + 4),
    ),
    "cell": (torch.nn.LSTMCell(8, 4), (torch.randn(2, 8),), 2 * 16 * (8 + 4)),
}


class Products(torch.nn.Module):
    def forward(self, x, y):
        z = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return x @ y, torch.einsum("bik,bkj->bij", x, y), z


def counted(model, args, **more):
    program = export(model.eval(), args, **more)
    return [n for node in iter_nodes(program) if (n := count_multiplications(node))]


@pytest.mark.parametrize(("model", "args", "expected"), SHAPES.values(), ids=SHAPES)
def test_multiplications_of_layers(model, args, expected):
    assert counted(model, args) == [expected]


def test_multiplications_of_products():
    args = (torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    assert counted(Products(), args) == [2 * (2 * 3 * 3 * 4), 2 * 3 * 4 * 5, 2 * 3 * 4 * 5]


def test_multiplications_of_dynamic_sizes_are_those_of_the_export():
    shapes = ({0: Dim("n", min=2, max=64)},)
    assert counted(torch.nn.Linear(8, 4), (torch.randn(7, 8),), dynamic_shapes=shapes) == [7 * 32]


def test_a_comparison_that_fails_stops_no_quantization(monkeypatch, caplog):
    def fail(self, inputs):
        raise RuntimeError("no")

    monkeypatch.setattr(PreparedComparison, "expect", fail)
    facts, notes = describe(*LINEAR, **STATIC)
    assert notes.prepared is None and facts["weights"]["quantized"]
    assert "can't be compared with the float one" in caplog.text
