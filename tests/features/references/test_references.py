"""References that diverge from the export, one of each kind, and references that don't."""

import functools
import os
import random

import numpy
import pytest
import torch
from torch import nn
from torch.export import Dim, export

from pipeline.features.references.reference_state import KeptState
from pipeline.validate.method_result import describe_failure
from tests.support.referenced import judge, record

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def verdict_of(
    module,
    reference=None,
    inputs=(X,),
    shapes=None,
    is_random=False,
    examples=None,
    settings=None,
):
    """Export a module and judge it by a reference, by default the module itself."""
    programs = {"forward": export(module, inputs, dynamic_shapes=shapes)}
    recordings = record({"forward": reference or module}, programs, examples)
    return judge(recordings, programs, is_random=is_random, settings=settings)["forward"]


class Branches(nn.Module):
    """Behaves according to `way`, during export and otherwise."""

    def __init__(self, way=""):
        super().__init__()
        self.way, self.steps = way, 0
        self.register_buffer("total", torch.zeros(4))
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        exporting, y = torch.compiler.is_exporting(), self.linear(x)
        match self.way:
            case "zero":
                return y * 0 if exporting else y
            case "nan":
                return y if exporting else torch.where(y > 0, y, torch.nan)
            case "saturates":
                return y.clamp(-40, 40) if exporting else y
            case "divides":
                return x.sign() if exporting else x / x.abs()
            case "large":
                return y if exporting or x.shape[0] < 6 else y + 1
            case "small":
                return y if exporting or x.shape[0] > 1 else y + 1
            case "dict":
                return {"a": y} if exporting else {"b": y}
            case "two":
                return y if exporting else (y, y)
            case "shape":
                return y if exporting else y[:, :1]
            case "dtype":
                return y if exporting else y.double()
            case "raises":
                if not exporting:
                    raise ValueError("no such thing")
            case "noise":
                return y if exporting else y + torch.rand(4)
            case "count":
                self.steps += not exporting
                return y + max(self.steps - 1, 0)
            case "slight":
                return y if exporting else y * (1 + 2e-5)
            case "total":
                return self.total.add_(y.sum(0)) if exporting else self.total.add_(y.sum(0)) + 0
            case "forgets":
                return y if exporting else self.total.add_(y.sum(0)) * 0 + y + self.total * 0.1
        return y


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("zero", "absolute error"),
        ("raises", "the reference raises ValueError: no such thing"),
        ("count", "(call 2 from example 0)"),
        pytest.param("nan", "NaN or infinite", marks=slow),
        pytest.param("dict", "returns output['a'], the reference output['b']", marks=slow),
        pytest.param("two", "returns output, the reference output[0], output[1]", marks=slow),
        pytest.param("shape", "shape (2, 4), must be (2, 1)", marks=slow),
        pytest.param("dtype", "dtype float32, must be float64", marks=slow),
        pytest.param("noise", "the reference is random: output differs by up to", marks=slow),
        pytest.param("slight", "absolute error", marks=slow),
        pytest.param("forgets", "absolute error", marks=slow),
    ],
)
def test_an_export_that_diverges_fails(way, said):
    result = verdict_of(Branches(way).eval())
    assert result.reference["verdict"] == "failed"
    assert {failure["about"] for failure in result.failures} == {"reference"}
    assert any(said in describe_failure(failure) for failure in result.failures)
    assert result.verdict == "not run"  # the lowering has a separate verdict


@pytest.mark.parametrize(("way", "size"), [("small", "x.shape[0]=1"), ("large", "x.shape[0]=8")])
def test_sizes_are_tried_at_both_ends(way, size):
    result = verdict_of(Branches(way), shapes=({0: Dim("batch", max=8)},))
    assert result.failures[0]["inputs"].partition(": ")[2] == size


@pytest.mark.parametrize(
    ("way", "values"), [("saturates", "large, 1024 times"), ("divides", "zeros")]
)
def test_zeros_and_large_values_are_tried(way, values):
    result = verdict_of(Branches(way))
    assert [failure["inputs"].partition(": ")[2] for failure in result.failures] == [values]


@pytest.mark.parametrize("way", ["", "total"])
def test_an_export_that_is_its_reference_passes_exactly(way):
    result = verdict_of(Branches(way), shapes=({0: Dim("batch", max=8)},))
    assert not result.failures
    assert (result.reference["verdict"], result.reference["max_abs"]) == ("passed", 0.0)
    assert result.reference["calls"] == (18 if way else 6)


def test_a_reference_that_computes_gradients_says_what_it_needs():
    def gradient(x):
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad((leaf * leaf).sum(), leaf)[0]

    failure = verdict_of(nn.ReLU(), gradient).failures[0]
    assert "run without gradients: use torch.enable_grad() where" in failure["what"]


def test_another_order_of_sums_is_rounding():
    torch.manual_seed(0)
    layer = nn.Linear(200, 4).requires_grad_(False)
    result = verdict_of(
        layer,
        lambda x: (x.flip(1) @ layer.weight.flip(1).T) + layer.bias,
        inputs=(torch.randn(1, 200),),
    )
    assert result.reference["verdict"] == "passed"
    assert 0 < result.reference["of_limit"] < 1


@slow
def test_a_function_is_a_reference_as_well():
    linear = Branches().linear
    result = verdict_of(linear, lambda input: (input.numpy() @ linear.weight.numpy().T + 0,))
    assert result.reference["verdict"] == "failed"  # without the bias
    bias = linear.bias.numpy()
    result = verdict_of(linear, lambda input: (input.numpy() @ linear.weight.numpy().T + bias,))
    assert result.reference["verdict"] == "passed"


@slow
def test_a_module_runs_as_it_is_handed_over():
    """In training mode it is random or changes its statistics; a run changes neither mode nor
    statistics."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).requires_grad_(False).eval()
    programs = {"forward": export(module, (X,))}
    module.train()
    (result,) = judge(record({"forward": module}, programs), programs).values()
    assert "it is in training mode: 1 (Dropout)" in describe_failure(result.failures[0])
    norm = nn.Sequential(nn.BatchNorm1d(4)).requires_grad_(False).eval()
    programs = {"forward": export(norm, (X,))}
    norm.train()
    (result,) = judge(record({"forward": norm}, programs), programs).values()
    assert result.reference["verdict"] == "failed"
    assert norm.training and not norm[0].running_mean.any()


@slow
def test_what_a_reference_changes_of_its_process_is_restored():
    def disturb(x):
        assert torch.get_default_dtype() is torch.float32
        random.random(), numpy.random.rand(), torch.rand(1)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float64)
        return x + 1

    class Add(nn.Module):
        def forward(self, x):
            return x + 1

    before = random.getstate(), torch.get_rng_state()
    assert verdict_of(Add(), disturb).reference["verdict"] == "passed"
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert torch.get_default_dtype() is torch.float32


class Coarse(nn.Module):
    """Rounds to int8 as a program does that its exporter quantized."""

    def forward(self, x):
        step = (0.05, 0, -128, 127, torch.int8)
        quantized = torch.ops.quantized_decomposed.quantize_per_tensor(x * 2, *step)
        return torch.ops.quantized_decomposed.dequantize_per_tensor(quantized, *step)


@pytest.mark.parametrize(("least", "verdict"), [(20.0, "passed"), (90.0, "failed")])
def test_limits_judge_what_an_exporter_quantized_on_its_examples(least, verdict):
    """Other inputs may be outside the range that it was quantized for."""
    result = verdict_of(Coarse(), lambda x: x * 2, settings={"reference": {"min_sqnr": least}})
    assert result.reference["verdict"] == verdict
    assert result.reference["calls"] == 1
    assert {skip["reason"] for skip in result.reference["skipped"]} == {
        "the exported program is quantized, so the limits of validate.reference apply to examples"
    }


def test_without_limits_what_an_exporter_quantized_says_which_key_sets_them():
    failure = verdict_of(Coarse(), lambda x: x * 2).failures[0]
    assert "validate.reference.min_sqnr sets what it may lose on examples)" in failure["what"]
    assert verdict_of(Coarse(), Coarse()).reference["verdict"] == "passed"


class Counting(nn.Module):
    """Counts its calls in Python, changes its outputs after some calls, and raises after more."""

    def __init__(self, changes, ends=1000):
        super().__init__()
        self.changes, self.ends, self.calls = changes, ends, 0

    def forward(self, x):
        self.calls += 1
        if self.calls > self.ends:
            raise RuntimeError("full")
        return x * 3 if self.calls > self.changes else x * 2


@pytest.mark.parametrize(
    ("changes", "ends", "verdict"),
    [
        (20, 1000, "failed"),
        (1000, 1000, "passed"),
        (1000, 20, "passed"),
        (20, 21, "failed"),
        (1000, 2, "passed"),
        (1000, 1, "failed"),
    ],
)
def test_what_a_counter_in_python_changes_late_is_found(changes, ends, verdict):
    module = Counting(changes, ends)
    program = export(module, (X,))
    module.calls = 0
    result = judge(record({"run": module}, {"run": program}), {"run": program})["run"]
    assert result.reference["verdict"] == verdict
    if verdict == "failed":
        place = f"call {min(changes, ends) + 1} from example 0"
        assert result.failures[0]["inputs"] == f"example 0 ({place})"
    if ends == 2:
        assert result.reference["skipped"][0] == {
            "origin": "example 0 (call 3 from example 0)",
            "reason": "the reference raises RuntimeError: full",
        }


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4))


class Method(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.shared = shared


class Prefill(Method):
    def forward(self, x):
        self.shared.cache.copy_(x.sum(0))
        return x * 2


class Decode(Method):
    def forward(self, x):
        self.shared.cache.add_(x.sum(0))
        return self.shared.cache * 1


class Forgetful(Method):
    """A decode whose export reads a cache under another name."""

    def __init__(self, shared):
        super().__init__(shared)
        self.register_buffer("own", torch.zeros(4))

    def forward(self, x):
        cache = self.own if torch.compiler.is_exporting() else self.shared.cache
        cache.add_(x.sum(0))
        return cache * 1


@slow
def test_methods_that_change_one_module_are_run_in_sequence():
    def judged(decode_class, shares_state=True):
        shared = Cache()
        prefill, decode = Prefill(shared), decode_class(shared)
        programs = {"prefill": export(prefill, (X,)), "decode": export(decode, (X,))}
        recordings = record({"prefill": prefill, "decode": decode}, programs)
        assert not shared.cache.any()
        return judge(recordings, programs, shares_state)

    results = judged(Decode)
    assert not results["prefill"].failures + results["decode"].failures
    calls = results["prefill"].reference["calls"]
    (failure, *_) = judged(Forgetful)["prefill"].failures
    assert failure["inputs"] == "decode on example 0 (call 2 of prefill > decode)"
    split = judged(Decode, shares_state=False)["prefill"]
    assert not split.failures and split.reference["calls"] == calls - 4 - 2
    skips = [skip["origin"] for skip in split.reference["skipped"]]
    assert skips == ["prefill > decode", "decode > prefill"]


class Unwritten(Method):
    """A method whose export doesn't write the cache."""

    def forward(self, x):
        if not torch.compiler.is_exporting():
            self.shared.cache.add_(x.sum(0))
        return x * 2


def test_what_the_last_method_writes_is_read_by_another():
    shared = Cache()
    references = {"decode": Decode(shared), "last": Unwritten(shared)}
    programs = {name: export(module, (X,)) for name, module in references.items()}
    (failure, *_) = judge(record(references, programs), programs)["decode"].failures
    assert failure["inputs"] == "decode on example 0 (call 2 of last > decode)"


@slow
def test_a_random_reference_of_a_method_that_samples_is_judged_by_its_distribution():
    class Noise(nn.Module):
        def __init__(self, width=1.0):
            super().__init__()
            self.width = width

        def forward(self, x):
            return x + torch.rand_like(x) * self.width

    assert verdict_of(Noise(), is_random=True).reference["verdict"] == "passed"
    result = verdict_of(Noise(), Noise(4.0), is_random=True)
    assert result.reference["verdict"] == "failed"
    assert verdict_of(Noise()).reference["verdict"] == "failed"
    result = verdict_of(Branches(), Branches("noise"), is_random=True)
    assert "those of the exported program are not" in describe_failure(result.failures[0])


COUNTER = [0]


def test_all_that_a_reference_reaches_is_restored():
    class Holder:
        pass

    holder, steps = Holder(), [0]
    holder.tensors, holder.count = [torch.zeros(2)], 0
    module = Branches()
    module.register_buffer("late", None)

    def reference(x):
        nonlocal module
        steps.append(1)
        COUNTER[0] += 1
        holder.count += 1
        holder.tensors[0] = holder.tensors[0] + 1
        module.total.data.fill_(3.0)
        module.late = torch.ones(1)
        module.linear.weight.grad = None
        return x

    state = KeptState([reference])
    reference(X)
    assert state.changed()
    state.restore()
    assert (steps, COUNTER, holder.count) == ([0], [0], 0)
    assert not holder.tensors[0].any() and not module.total.any() and module.late is None
    assert not state.changed()


@slow
def test_a_changed_parameter_is_a_failure():
    module = Branches()

    def reference(x):
        module.linear.weight.add_(1)
        return module(x)

    result = verdict_of(Branches(), reference)
    assert "changes a parameter in place" in describe_failure(result.failures[0])


@slow
@pytest.mark.parametrize(("length", "verdict"), [(8, "passed"), (2, "failed")])
def test_a_reference_may_end_its_process(length, verdict):
    """Kernels that check sizes with an assertion do; a call with generated sizes is left out."""

    def reference(x):
        return os.abort() if len(x) == length else x + 1

    class Add(nn.Module):
        def forward(self, x):
            return x + 1

    result = verdict_of(Add(), reference, shapes=({0: Dim("batch", max=8)},))
    assert result.reference["verdict"] == verdict
    (skip,) = result.reference["skipped"] or [{"reason": result.failures[0]["what"]}]
    assert "ends its process (SIGABRT)" in skip["reason"]


class Calling(nn.Module):
    """Calls another module."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


OWN = {
    "closure": lambda program: lambda x: program.module()(x),
    "wrapped": lambda program: Calling(program.module()),
    "partial": lambda program: functools.partial(program.module()),
}


@slow
@pytest.mark.parametrize("way", OWN)
def test_a_reference_that_calls_the_exported_program_fails(way):
    result = verdict_of(Branches("zero"), OWN[way](export(Branches("zero"), (X,))))
    assert result.reference["verdict"] == "failed"
    assert "would be compared with itself" in describe_failure(result.failures[0])


@slow
def test_a_reference_may_call_the_program_of_one_part_of_the_model():
    part = Branches()
    linear = export(part, (X,)).module()

    class Doubled(Calling):
        def forward(self, x):
            return self.module(x) * 2

    result = verdict_of(Doubled(part), lambda x: linear(x) * 2)
    assert result.reference["verdict"] == "passed"
