"""Quantizer patterns: skipped ones can't match, and kept ones equal what would be exported."""

import operator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer_utils
from torch.export import export
from torch.fx.experimental.proxy_tensor import make_fx
from torchao.quantization.pt2e import export_utils, qat_utils, utils

from pipeline.features.quantization.quantize import quantize
from pipeline.features.speedups import quantizer_patterns
from pipeline.features.speedups.patches import fast_lowering
from pipeline.features.speedups.quantizer_patterns import NEEDED, export_once
from pipeline.program.inputs import InputSet
from pipeline.program.operators import base_name
from pipeline.program.patching import wrapped
from tests.support.configs import parse_config


class Net(torch.nn.Module):
    """A batch norm that no convolution can absorb, and one that is folded."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3)
        self.folded, self.left = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.left(torch.relu(self.folded(self.first(x))))
        return F.dropout(self.second(x), 0.5, training=self.training)


def program_of(module, *shape):
    return export(module.eval().requires_grad_(False), (torch.zeros(shape),))


@pytest.fixture(autouse=True)
def nothing_kept():
    quantizer_patterns._kept.clear()
    yield
    quantizer_patterns._kept.clear()


def spied(owner, calls):
    """Record a module's patterns from the cheap tracing that `coreml.quantizer` trusts."""

    def note(original, pattern, inputs, is_cuda=False, **options):
        traced = make_fx(partial(pattern, **options), tracing_mode="real", pre_dispatch=True)(
            *inputs
        )
        calls.append({base_name(node) for node in traced.graph.nodes} - {""})
        return quantizer_patterns._export_blank().module()

    return wrapped(owner, "_get_aten_graph_module_for_pattern", note)


CONV_INPUTS = ((1, 1, 3, 3), (1, 1, 1, 1), (1,), (1,), (1,), (1,))
# The owner of the global that exports patterns, a call, how many patterns it exports, and whether
# every second one replaces the one before it.
SEARCHES = {
    "_replace_dropout": (utils, lambda m: export_utils._replace_dropout(m, True), 4, True),
    "_replace_batchnorm": (utils, lambda m: export_utils._replace_batchnorm(m, True), 2, True),
    "_do_annotate_conv_bn": (
        xnnpack_quantizer_utils,
        lambda m: xnnpack_quantizer_utils._do_annotate_conv_bn(m, None, None, has_relu=True),
        4,
        False,
    ),
    "_fold_conv_bn_qat_helper": (
        qat_utils,
        lambda m: qat_utils._fold_conv_bn_qat_helper(
            m, F.conv2d, tuple(map(torch.zeros, CONV_INPUTS)), is_cuda=False
        ),
        24,
        True,
    ),
}


@pytest.mark.parametrize("search", NEEDED)
def test_each_pattern_has_the_operators_without_which_none_is_exported(search):
    owner, run, count, replaces = SEARCHES[search]
    module = program_of(torch.nn.Linear(2, 2), 1, 2).module(check_guards=False)
    calls = []
    with spied(owner, calls):
        run(module)
        assert len(calls) == count
        matched = calls[:: 1 + replaces]
        assert all(NEEDED[search] <= operators for operators in matched)
        with fast_lowering(kind="quantize"):
            run(module)
    assert len(calls) == count


ONE = (torch.zeros(1),)


class Pattern(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def pattern(operation=operator.add, scale=2, keyword=None):
    def compute(x, by=keyword):
        return operation(x, scale)

    return Pattern(compute)


def local_pattern(operation):
    class Local(torch.nn.Module):
        def forward(self, x):
            return operation(x, x)

    return Local()


def holding(tensor):
    module = pattern()
    module.register_buffer("held", tensor)
    return module


@pytest.fixture
def exported(monkeypatch):
    """Record what torch is asked to export."""
    patterns = []

    def note(pattern, inputs, options, **settings):
        patterns.append(pattern)
        return len(patterns)

    monkeypatch.setattr(torch.export, "export", note)
    return patterns


@pytest.mark.parametrize("make", [pattern, lambda: local_pattern(operator.add)])
def test_an_equal_pattern_is_not_exported_again(make, exported):
    for value in (0.0, 1.0):
        assert export_once(make(), (torch.full((1,), value),), {}) == 1
    assert len(exported) == 1


@pytest.mark.parametrize(
    "others",
    [
        (pattern(scale=3), ONE),
        (pattern(scale=2.0), ONE),
        (pattern(scale=True), ONE),
        (pattern(operator.sub), ONE),
        (pattern(torch.nn.functional.relu), ONE),
        (pattern(keyword=1), ONE),
        (pattern().eval(), ONE),
        (local_pattern(operator.sub), ONE),
        (pattern(), (torch.zeros(2),)),
        (pattern(), (torch.zeros(1, dtype=torch.int8),)),
        (pattern(), (1,)),
        (pattern(), ONE, {"strict": True}),
    ],
)
def test_another_one_is(others, exported):
    for known in (pattern(), local_pattern(operator.add)):
        export_once(known, ONE, {})
    different, inputs, *settings = others
    assert export_once(different, inputs, {}, **dict(*settings)) == 3


def test_other_keywords_are_exported_again(exported):
    for options in ({}, {"scale": torch.ones(1)}, {"scale": torch.ones(2)}):
        export_once(pattern(), ONE, options)
    with torch.no_grad():
        export_once(pattern(), ONE, {})
    assert len(exported) == 4


@pytest.mark.parametrize(
    "unknown", [pattern(scale=torch.ones(1)), holding(torch.ones(1)), pattern(scale=object())]
)
def test_a_pattern_that_holds_values_is_exported_each_time(unknown, exported):
    for _ in range(2):
        export_once(unknown, ONE, {})
    assert len(exported) == 2


@pytest.mark.slow
def test_quantized_programs_are_the_same(monkeypatch):
    """One method contains everything that patterns look for, another nothing; both also run without
    anything to export. Upstream's 96 training patterns, 12 s, are left out: they would find
    nothing."""
    data = {
        "model": "m",
        "methods": {"f": {"quantize": {"quantizer": "xnnpack"}, "partitioners": []}},
    }
    spec = parse_config("p", data, "p.yaml").methods["f"].quantize
    for net, count in ((Net(), 18), (torch.nn.Conv2d(3, 3, 1), 0)):
        program = program_of(net, 1, 3, 9, 9)
        inputs = [InputSet((torch.randn(1, 3, 9, 9),))]
        quantizer_patterns._kept.clear()
        with fast_lowering(kind="quantize"):
            programs = [quantize(program, spec, inputs) for _ in range(2)]
            assert len(quantizer_patterns._kept) == count
        with monkeypatch.context() as patches:
            patches.setattr(qat_utils, "_fold_conv_bn_qat_helper", lambda m, *args, **options: m)
            plain = quantize(program, spec, inputs)
        for quantized in programs:
            assert quantized.graph_module.code == plain.graph_module.code
            assert quantized.state_dict.keys() == plain.state_dict.keys()
            for name, value in plain.state_dict.items():
                assert torch.equal(value, quantized.state_dict[name])
