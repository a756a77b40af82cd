"""The place where a method goes wrong is named exactly, whatever the cause."""

import copy
import dataclasses
import re
from functools import cache

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir.dialects._ops import ops as edge_ops
from torch import nn

from pipeline.backends import BACKENDS, make_partitioners
from pipeline.config.validation import Limits
from pipeline.devices import bindings
from pipeline.features.add_sub import runtime as add_sub
from pipeline.features.locating import locate as locating
from pipeline.features.locating.case import Located
from pipeline.features.locating.interpreter import prims
from pipeline.features.locating.locate import locate
from pipeline.features.locating.walk import Tolerance, returns_state
from pipeline.program.inputs import InputSet
from pipeline.store.errors import PipelineError
from pipeline.validate.budget import Budget
from pipeline.validate.method_result import MethodValidation
from pipeline.validate.results import Validation
from pipeline.validate.runs import JudgedCall
from tests.devices.test_bindings import Counter, exported
from tests.features.locating.test_interpreter import Branches
from tests.support.configs import parse_config
from tests.support.located import build, opened, plan_of, written


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 8)

    def forward(self, x):
        return self.second(torch.sigmoid(self.first(x))) + x


class Chain(nn.Module):
    def forward(self, x, y):
        total = x + y
        rest = total - y
        return rest + total


class Pair(nn.Module):
    def forward(self, x):
        return x + 1, x * 2


class Cache(nn.Module):
    """State in two buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.total.add_(x)
        self.count.add_(1)
        return self.total / self.count


X = noise(4, 8, seed=1)
V = torch.tensor([1.0, 2.0, 3.0])


@cache
def portable():
    return build({"run": exported(Net(), X)})


@cache
def delegated():
    sources = {"other": exported(Net(1), X), "run": exported(Net(), X)}
    return build(sources, {name: [XnnpackPartitioner()] for name in sources})


def of_add_sub():
    config = {"model": "m", "methods": {"run": {"partitioners": ["add_sub"]}}}
    (spec,) = parse_config("p", config, "p.yaml").methods["run"].partitioners
    return make_partitioners([spec])


def line_of(text):
    """Return the place of a text in this file, as error messages name it."""
    for number, line in enumerate(open(__file__), 1):  # noqa: SIM115
        if text in line and "line_of" not in line:
            return f"tests/features/locating/test_locate.py:{number}"
    raise AssertionError(text)


def only(located: Located):
    (culprit,) = located.culprits
    return culprit


def with_byte(data, place, mask=0x10):
    changed = bytearray(data)
    changed[place] ^= mask
    return bytes(changed)


def damaged_weight():
    """Return the portable package with a damaged `second.weight`."""
    file = opened(portable().pte)
    buffers = file.program.constant_buffer
    wanted = portable().sources["run"].state_dict["second.weight"].contiguous()
    content = bytes(wanted.view(torch.uint8).flatten().tolist())
    (buffer,) = [b for b in buffers if bytes(b.storage)[: len(content)] == content]
    buffer.storage = with_byte(buffer.storage, 2, 0x40)
    return written(file)


def test_a_weight_that_is_not_the_programs():
    located = portable().located("run", [X], pte=damaged_weight())
    culprit = only(located)
    assert culprit["line"] == line_of("return self.second(torch.sigmoid(")
    assert (culprit["operator"], culprit["module"]) == ("aten.linear.default", "second")
    assert culprit["kind"] == "operator"
    assert "all its inputs agree" in culprit["what"]
    (divergence,) = located.first.values()
    assert divergence.expected.shape == (4, 8)
    assert located.notes == ()


def test_an_operator_that_was_exchanged():
    file = opened(portable().pte)
    for operator in plan_of(file, "run").operators:
        operator.name = operator.name.replace("aten::add", "aten::sub", 1)
    names = [o.name for o in plan_of(file, "run").operators]
    index = names.index("aten::submm")
    plan_of(file, "run").operators[index].name = "aten::addmm"
    pte = written(file)
    culprit = only(portable().located("run", [X], pte=pte))
    assert (culprit["operator"], culprit["module"]) == ("aten.add.Tensor", "")
    assert culprit["line"] == line_of("return self.second(torch.sigmoid(")


def wrong_sigmoid(values, args):
    values[args[-1]].assign(torch.sigmoid(values[args[0]].tensor()) * 1.01)


def test_a_kernel_that_computes_something_else(monkeypatch):
    monkeypatch.setitem(prims.KERNELS, "sigmoid.out", wrong_sigmoid)
    culprit = only(portable().located("run", [X]))
    assert (culprit["operator"], culprit["module"]) == ("aten.sigmoid.default", "")
    assert culprit["kind"] == "operator"
    assert culprit["error"]["sqnr_db"] == pytest.approx(40, abs=0.1)
    assert (culprit["kernel"], culprit["backend"]) == ("aten::sigmoid.out", None)
    assert "all its inputs agree" in culprit["what"]


def test_a_kernel_in_a_branch(monkeypatch):
    def wrong(values, args):
        values[args[-1]].assign(values[args[0]].tensor() / 2)

    built = build({"run": exported(Branches(), torch.ones(3))})
    negative = -torch.ones(3)
    monkeypatch.setitem(prims.KERNELS, "div.out", wrong)
    assert built.located("run", [torch.ones(3)]).culprits == ()
    culprit = only(built.located("run", [negative]))
    assert culprit["operator"] == "aten.div.Tensor"
    assert culprit["line"].startswith("tests/features/locating/test_interpreter.py:")


def test_a_weight_of_a_delegate():
    file = opened(delegated().pte)
    weight = delegated().sources["run"].state_dict["second.weight"].contiguous()
    content = bytes(weight.view(torch.uint8).flatten().tolist())
    buffers = file.named_data.buffers
    (index,) = [n for n, data in enumerate(buffers) if bytes(data)[: len(content)] == content]
    buffers[index] = with_byte(buffers[index], 2, 0x40)
    pte = written(file)
    culprit = only(delegated().located("run", [X], pte=pte))
    told = (culprit["operator"], culprit["module"], culprit["backend"], culprit["partition"])
    assert told == ("aten.linear.default", "second", "XnnpackBackend", 0)
    assert culprit["kind"] == "delegate"
    assert "the package has a weight second.weight" in culprit["what"]
    assert delegated().located("other", [X], pte=pte).culprits == ()


def test_delegates_that_were_swapped():
    file = opened(delegated().pte)
    one, other = (plan_of(file, name).delegates[0].processed for name in ("run", "other"))
    one.index, other.index = other.index, one.index
    pte = written(file)
    culprit = only(delegated().located("run", [X], pte=pte))
    assert culprit["partition"] == 0 and "its payload differs from what lowering" in culprit["what"]


def wrong_preprocess(edge_program, compile_specs):
    for node in edge_program.graph.nodes:
        if node.target is edge_ops.edge.aten.sigmoid.default:
            node.target = edge_ops.edge.aten.tanh.default
    return _RIGHT(edge_program, compile_specs)


_RIGHT = XnnpackBackend.preprocess


def test_a_delegate_that_computes_something_else(monkeypatch):
    monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(wrong_preprocess))
    built = build({"run": exported(Net(), X)}, {"run": [XnnpackPartitioner()]})
    culprit = only(built.located("run", [X]))
    told = (culprit["operator"], culprit["module"], culprit["backend"], culprit["partition"])
    assert told == ("aten.sigmoid.default", "", "XnnpackBackend", 0)
    assert culprit["line"] == line_of("return self.second(torch.sigmoid(")
    assert culprit["kind"] == "delegate"
    assert "compiles of parts of the partition" in culprit["what"]
    monkeypatch.setattr("pipeline.features.locating.bisect_delegate.MOST_COMPILES", 1)
    sentence = only(built.located("run", [X]))["what"]
    assert "first divergence: the output of aten.add.Tensor, " in sentence
    assert re.search(
        r"; narrowed to \d nodes, \w+ to \w*add\w*, in 1 compiles, the limit", sentence
    )


def test_a_runtime_in_python_that_subtracts_wrongly(monkeypatch):
    right = add_sub._compute

    def wrong(instruction, *operands):
        given = right(instruction, *operands)
        return given + 1 if instruction.operation == "sub" else given

    monkeypatch.setattr(add_sub, "_compute", wrong)
    built = build({"run": exported(Chain(), V, V)}, {"run": of_add_sub()})
    culprit = only(built.located("run", [V, V]))
    assert (culprit["operator"], culprit["partition"]) == ("aten.sub.Tensor", 0)
    assert culprit["line"] == line_of("rest = total - y")
    assert culprit["backend"] == BACKENDS["add_sub"].backend_id


@cache
def quantized():
    """Return an int8 method with one scale for `first.weight`, which has one far larger value."""
    net = Net()
    with torch.no_grad():
        net.first.weight[0, 0] = 200.0
    options = {"quantizer": "xnnpack", "per_channel": False}
    config = {"model": "m", "methods": {"run": {"partitioners": [], "quantize": options}}}
    spec = parse_config("p", config, "p.yaml").methods["run"].quantize
    sources = {"run": exported(net, X)}
    calibration = [InputSet((noise(4, 8, seed=n),)) for n in range(4)]
    return build(sources, {"run": [XnnpackPartitioner()]}, {"run": spec}, calibration)


@pytest.mark.slow
def test_a_quantization_that_is_too_coarse():
    first, *others = quantized().located("run", [X]).culprits
    assert (first["operator"], first["module"]) == ("aten.linear.default", "first")
    assert first["line"] == line_of("return self.second(torch.sigmoid(")
    assert first["what"].startswith("the quantization itself diverges from floating point, most in")
    assert (first["backend"], first["partition"], first["kernel"]) == ("XnnpackBackend", 0, "")
    assert "in XnnpackBackend's delegate 0: error" in first["what"]
    assert first["error"]["sqnr_db"] < 40
    assert all(c["error"]["sqnr_db"] > first["error"]["sqnr_db"] for c in others)


def test_a_quantized_method_that_stops_is_located():
    """It has no outputs to compare with the noise of the quantized program."""
    file = opened(quantized().pte)
    plan = plan_of(file, "run")
    plan.values[plan.outputs[0]].val.sizes[0] = 3
    culprit = only(quantized().located("run", [X], pte=written(file)))
    assert culprit["what"].startswith("stops at ")
    assert (culprit["kind"], culprit["backend"]) == ("delegate", "XnnpackBackend")


def test_a_limit_on_noise_alone_is_one_that_is_looked_into(monkeypatch):
    """With `atol` wide enough for the error, no message claims that the computation agrees."""
    monkeypatch.setitem(prims.KERNELS, "sigmoid.out", wrong_sigmoid)
    culprit = only(portable().located("run", [X], atol=1.0, min_sqnr=60.0))
    assert culprit["operator"] == "aten.sigmoid.default"


def test_every_method_that_failed_gets_a_look_or_the_reason_why_not(monkeypatch):
    looked = []
    monkeypatch.setattr(
        locating,
        "locate",
        lambda evidence, name, failing, examples, budget: looked.append(name),
    )
    methods = [MethodValidation(f"m{n}") for n in range(10)]
    methods[0].not_run = "ends the process that runs it"
    for each in methods[1:9]:
        each.runs = [JudgedCall("example 0", ())]
    methods += [MethodValidation("size", kind="constant"), MethodValidation("x", kind="unknown")]
    for each in methods:
        each.fail("wrong")
    methods.append(MethodValidation("lost"))
    methods[-1].fail("the package lacks this method; it has none", about="lacking")
    methods.append(MethodValidation("fine"))
    methods.append(
        MethodValidation("reader", limits_from="float32", runs=[JudgedCall("example 0", ())])
    )
    methods[-1].fail("lost in the quantization of 'm1'", about="quantization")
    sources = dict.fromkeys([*(f"m{n}" for n in range(10)), "lost", "fine", "reader"])
    evidence = dataclasses.replace(portable().evidence(), sources=sources)
    validation = Validation("p.pte", tuple(methods), (), {})
    found = locating.locate_failures(evidence, validation, {})
    assert found.keys() == {each.method for each in methods if not each.ok}
    assert {*looked} == {f"m{n}" for n in range(1, 9)}
    notes = {name: each.notes for name, each in found.items() if name not in looked}
    assert notes == {
        "m0": ("m0: not examined: it did not run",),
        "m9": ("m9: not examined: it did not run",),
        "size": ("size: not examined: no operator computes a constant",),
        "x": ("x: not examined: its source has no such method",),
        "lost": ("lost: not examined: the package lacks it",),
        "reader": ("reader: not examined: quantized methods write the state that it reads",),
    }
    spent = locating.locate_failures(evidence, validation, {}, Budget(0))
    assert spent.keys() == found.keys()
    assert all("not examined: " in note for each in spent.values() for note in each.notes)
    assert "validate.budget" in spent["m1"].notes[0]


@pytest.mark.slow
def test_a_gelu_that_is_computed_by_another_formula_is_no_other_method():
    """XNNPACK computes both with erf. Their outputs are similar, and only the operator diverges."""

    class Gelu(Net):
        def __init__(self, formula):
            super().__init__()
            self.formula = formula

        def forward(self, x):
            return nn.functional.gelu(self.first(x), approximate=self.formula)

    sources = {name: exported(Gelu(name), X) for name in ("tanh", "none")}
    built = build(sources, {name: [XnnpackPartitioner()] for name in sources})
    culprit = only(built.located("tanh", [X], atol=1e-6, rtol=1e-6))
    assert culprit["what"].startswith(
        "first divergence: aten.gelu.default, tests/features/locating/"
    )
    assert (culprit["operator"], culprit["partition"]) == ("aten.gelu.default", 0)
    assert culprit["line"] == line_of("return nn.functional.gelu(self.first(x)")


@cache
def stateful():
    return build({"run": exported(Cache(), V), "whole": exported(Counter(), V)})


def test_state_that_is_not_carried():
    file = opened(stateful().pte)
    chain = plan_of(file, "run").chains[0]
    kernels = plan_of(file, "run").operators
    chain.instructions = [
        i for i in chain.instructions if kernels[i.instr_args.op_index].name != "aten::copy_"
    ]
    pte = written(file)
    culprit = only(stateful().located("run", [V], [V + 1], pte=pte))
    assert culprit["kind"] == "state"
    assert "leaves 'count', 'total' with different values than its source does" in culprit["what"]


def test_one_buffer_that_is_not_written_back():
    file = opened(stateful().pte)
    chain = plan_of(file, "run").chains[0]
    kernels = plan_of(file, "run").operators
    copies = [i for i in chain.instructions if kernels[i.instr_args.op_index].name == "aten::copy_"]
    chain.instructions = [i for i in chain.instructions if i is not copies[1]]
    culprit = only(stateful().located("run", [V], [V + 1], pte=written(file)))
    assert culprit["kind"] == "state"
    assert "leaves 'count' with different values than its source does, after" in culprit["what"]


def test_methods_that_were_swapped():
    file = opened(delegated().pte)
    one, other = plan_of(file, "run"), plan_of(file, "other")
    one.name, other.name = other.name, one.name
    pte = written(file)
    culprit = only(delegated().located("run", [X], pte=pte))
    assert culprit["kind"] == "delegate"
    assert "its payload differs from what lowering produces now" in culprit["what"]


@cache
def pair():
    return build({"run": exported(Pair(), V)})


def test_outputs_in_another_order():
    file = opened(pair().pte)
    plan_of(file, "run").outputs.reverse()
    located = pair().located("run", [V], pte=written(file))
    note = "run: its outputs diverge, but no earlier value that could be compared does"
    assert (located.culprits, located.notes) == ((), (note,))


@pytest.mark.parametrize(
    ("built", "method", "calls"),
    [
        (portable, "run", [[X]]),
        (delegated, "other", [[X]]),
        (stateful, "run", [[V], [V + 1]]),
        (pair, "run", [[V]]),
    ],
)
def test_a_clean_package_has_no_culprit(built, method, calls):
    located = built().located(method, *calls)
    assert located.culprits == ()
    assert "the interpreter computes from its bytes what the source computes" in located.notes[0]


def test_a_clean_quantized_package_has_no_culprit():
    located = quantized().located("run", [X], atol=100.0)
    assert located.culprits == ()


def test_limits_closer_than_the_dtype_are_told_as_such():
    located = delegated().located("run", [X], atol=0.0, rtol=0.0)
    assert located.culprits == ()
    assert "rounding" in located.notes[0]


def test_values_that_are_no_tensors_are_compared_exactly():
    exact = Tolerance(Limits(atol=0, rtol=0), 1.0)
    same = [3, True, 2.5, None, "relu"]
    assert exact.first_error(same, same) is None
    for place, other in enumerate([4, False, 2.6, 1, "gelu"]):
        assert exact.first_error([other], [same[place]]) is not None


def test_a_kernel_of_the_runtime_that_computes_something_else(monkeypatch):
    """The interpreter is right, while the runtime's kernel is replaced by another function."""

    def wrong(files):
        file = opened(files.contents())
        for plan in file.program.execution_plan:
            for operator in plan.operators:
                operator.name = operator.name.replace("aten::sigmoid", "aten::tanh")
        return _OPEN(dataclasses.replace(files, pte=written(file)))

    monkeypatch.setattr(bindings, "Package", wrong)
    culprit = only(portable().located("run", [X]))
    assert (culprit["operator"], culprit["kind"]) == ("aten.sigmoid.default", "operator")
    assert "in ExecuTorch's runtime alone" in culprit["what"]
    assert "runs of prefixes of the method" in culprit["what"]


_OPEN = bindings.Package


def test_a_value_that_is_returned_for_forms_sake_is_no_culprit():
    """`llama::update_cache` writes to its cache, and returns uninitialized memory."""
    with torch.library._scoped_library("locate", "DEF") as library:
        library.define("update(Tensor x, Tensor(a!) cache) -> Tensor")
        graph = torch.fx.Graph()
        x, cache = graph.placeholder("x"), graph.placeholder("cache")
        for_form = graph.call_function(torch.ops.locate.update.default, (x, cache))
        written = graph.call_function(torch.ops.aten.copy_.default, (cache, x))
        added = graph.call_function(torch.ops.aten.add.Tensor, (x, x))
        assert [returns_state(node) for node in (for_form, written, added)] == [False, True, False]


def test_what_fails_in_locating_is_told():
    def nothing(method):
        raise PipelineError("the quantized program is gone", "more")

    evidence = dataclasses.replace(portable().evidence(), lowered=nothing)
    located = locate(evidence, "run", [("run", InputSet((X,)))])
    assert located.culprits == ()
    (note,) = located.notes
    assert note == (
        "run: the faulty operator could not be found: PipelineError: the quantized program is gone"
        "; more"
    )


def test_a_lowering_that_fails_leaves_the_delegate(monkeypatch):
    def refused(method):
        raise PipelineError("no such backend")

    monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(wrong_preprocess))
    built = build({"run": exported(Net(), X)}, {"run": [XnnpackPartitioner()]})
    evidence = dataclasses.replace(built.evidence(), lower_again=refused)
    culprit = only(locate(evidence, "run", [("run", InputSet((X,)))]))
    assert (culprit["kind"], culprit["partition"]) == ("delegate", 0)
    assert culprit["what"].startswith("first divergence: the output of aten.")
    assert "could not be lowered again (no such backend)" in culprit["what"]


def test_a_package_that_lies_open_is_left_as_it_is():
    before = copy.copy(portable().pte)
    portable().located("run", [X], pte=damaged_weight())
    assert portable().pte == before


class Keep(nn.Module):
    """Writes the state that `Read` reads."""

    def __init__(self, cache):
        super().__init__()
        self.cache = cache

    def forward(self, x):
        self.cache.total.add_(x * 2)
        return self.cache.total + 1


class Read(Keep):
    def forward(self, x):
        return self.cache.total * torch.sigmoid(x)


@cache
def sharing():
    """Return two methods of a package that share one state."""
    state = Cache().requires_grad_(False)
    sources = {"keep": exported(Keep(state), V), "read": exported(Read(state), V)}
    return build(sources, emit_config={"memory_planning": {"share_mutable_buffers": True}})


@pytest.mark.parametrize(
    ("kernel", "method", "operator"),
    [
        ("sigmoid.out", "read", "aten.sigmoid.default"),
        ("mul.out", "keep", "aten.mul.Tensor"),
    ],
)
def test_a_sequence_across_methods_that_share_state(monkeypatch, kernel, method, operator):
    def wrong(values, args):
        right = getattr(torch, kernel.removesuffix(".out"))
        count = 2 if kernel == "mul.out" else 1
        values[args[-1]].assign(right(*(values[i].tensor() for i in args[:count])) + 0.5)

    calls = [("keep", InputSet((V,))), ("read", InputSet((V,)))]
    assert locate(sharing().evidence(), "read", calls).culprits == ()
    monkeypatch.setitem(prims.KERNELS, kernel, wrong)
    located = locate(sharing().evidence(), "read", calls)
    (call,) = located.first
    assert calls[call][0] == method  # reproduce.py shows the divergence in this call
    culprit = only(located)
    assert culprit["operator"] == operator
    assert f"in call {1 if method == 'keep' else 2} of the sequence" in culprit["what"]
