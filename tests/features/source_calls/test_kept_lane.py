"""A call with a known result isn't made, and a later call continues from the state it left."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.config.validation import ValidateConfig
from pipeline.features.rounding.source import RoundedSource
from pipeline.features.source_calls import kept_lane
from pipeline.features.source_calls.bodies import Bodies
from pipeline.features.source_calls.dequantized_weights import DequantizedWeights
from pipeline.features.source_calls.kept_lane import CallResults, KeptLane
from pipeline.features.source_calls.measuring import SourceCallMeasuring, _is_unpredictable
from pipeline.features.source_calls.outline import SOURCE_CALL
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.store.forms import check_of
from pipeline.store.store import Store
from pipeline.validate.budget import Budget
from pipeline.validate.package import validate_package
from pipeline.validate.references import Lane
from tests.mutations.samples import _packed

SETS = [InputSet((torch.full((4,), float(number) + 0.5),)) for number in range(4)]


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 3.0


class Reading(Counting):
    def forward(self, x):
        return self.total / 7.0 + x


PROGRAMS = {"count": export(Counting(), (torch.ones(4),))}
TOGETHER = {**PROGRAMS, "read": export(Reading(), (torch.ones(4),))}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_lane, "_LEAST_SECONDS", 0.0)
    return CallResults(Store(tmp_path / "store"))


@pytest.fixture
def calls(monkeypatch):
    """Record the calls that sources make, in a list of their classes."""
    made = []
    call_module = Source._call_module

    def counted(self, leaves):
        made.append(type(self))
        return call_module(self, leaves)

    monkeypatch.setattr(Source, "_call_module", counted)
    return made


def lane(results, programs=PROGRAMS, kind=Source, **identities):
    sources = kind.with_common_state(programs)
    known = {name: (identities.get(name, name),) for name in programs}
    return KeptLane("source", sources, known, results)


def outputs_of(lane, calls):
    return [lane.run(method, inputs, False, seed)[0] for method, inputs, seed in calls]


@pytest.mark.parametrize("kind", [Source, RoundedSource])
@pytest.mark.parametrize("programs", [PROGRAMS, TOGETHER], ids=len)
def test_known_calls_are_not_made_and_the_next_goes_on(results, calls, kind, programs):
    methods = list(programs)
    sequence = [
        (methods[number % len(methods)], inputs, number) for number, inputs in enumerate(SETS)
    ]
    expected = outputs_of(Lane("source", kind.with_common_state(programs)), sequence)
    outputs_of(lane(results, programs, kind), sequence[:2])
    calls.clear()
    again = lane(results, programs, kind)
    assert all(map(torch.equal, outputs_of(again, sequence[:2]), expected))
    assert calls == []
    # The third result is unknown: the first two calls are made after all, for their state.
    assert all(map(torch.equal, outputs_of(again, sequence[2:]), expected[2:]))
    assert len(calls) == 4
    calls.clear()
    again.reset()
    assert all(map(torch.equal, outputs_of(again, sequence), expected))
    assert calls == []


@pytest.mark.parametrize("keeps", [False, True], ids=["made", "kept"])
def test_postponed_calls_are_made_once_before_a_call_that_needs_their_state(results, calls, keeps):
    def new_lane():
        return lane(results) if keeps else Lane("source", Source.with_common_state(PROGRAMS))

    expected = outputs_of(new_lane(), [("count", inputs, 0) for inputs in SETS])
    postponing = new_lane()
    for _ in range(2):
        calls.clear()
        postponing.reset()
        postponing.postpone("count", SETS[0])
        postponing.postpone("count", SETS[1])
        assert calls == []
        (value,) = postponing.run("count", SETS[2])
        assert torch.equal(value, expected[2])
        postponing.postpone("count", SETS[3])
        assert len(calls) == (0 if keeps else 3)  # all results are known
        assert torch.equal(postponing.run_postponed()[0], expected[3])


def test_values_are_not_rounded_if_no_verdict_needs_it_even_with_state(calls, tmp_path):
    """The outputs of both methods are within their least limits, and move by more than these."""
    pte = tmp_path / "count.pte"
    pte.write_bytes(_packed(TOGETHER, {}).pte)
    settings = ValidateConfig(steps=3, latency={"seconds": 0})
    validation = validate_package(pte, (), TOGETHER, dict.fromkeys(TOGETHER, SETS), settings, {})
    assert [method.verdict for method in validation.methods] == ["passed"] * 2
    assert len(calls) > 20
    assert calls.count(RoundedSource) < 8


def test_another_program_or_history_is_another_call(results, calls):
    first, second = SETS[:2]
    lane(results).run("count", first)
    calls.clear()
    lane(results, count="another").run("count", first)
    assert len(calls) == 1
    after = lane(results)
    after.run("count", second)
    (value,) = after.run("count", first)
    assert len(calls) == 3 and torch.equal(value, (SETS[0].args[0] + SETS[1].args[0]) * 3.0)


def test_a_lost_or_damaged_blob_is_computed_again(results, calls, tmp_path):
    (expected,) = lane(results).run("count", SETS[0])
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and path.stat().st_size == expected.nbytes:
            path.chmod(0o600)
            path.write_bytes(b"x" * expected.nbytes)
    calls.clear()
    (value,) = lane(results).run("count", SETS[0])
    assert torch.equal(value, expected) and len(calls) == 1


def test_views_as_they_lie_and_quick_calls_are_not_kept(results, calls, monkeypatch):
    for _ in range(2):
        lane(results).run("count", SETS[0], True)
    monkeypatch.setattr(kept_lane, "_LEAST_SECONDS", 60.0)
    for _ in range(2):
        lane(results).run("count", SETS[0])
    assert len(calls) == 4


def test_equal_calls_of_programs_that_torchao_quantized_repeat():
    import torchao.quantization.quant_primitives  # noqa: F401  registers the operators

    class Quantizing(nn.Module):
        def forward(self, x):
            scale, zero = torch.ops.torchao.choose_qparams_affine(
                x, "ASYMMETRIC", [1, 4], torch.int8, None, None, None, torch.float32, torch.int8
            )
            return torch.ops.torchao.quantize_affine(x, [1, 4], scale, zero, torch.int8)

    program = export(Quantizing(), (torch.randn(2, 4),))
    assert "torchao" in str(program.graph)
    assert not _is_unpredictable(program)


def test_a_validation_goes_on_where_its_budget_ended(results, calls, tmp_path, monkeypatch):
    pte = tmp_path / "count.pte"
    pte.write_bytes(_packed(PROGRAMS, {}).pte)
    runs = []
    for spent_after in (6, 100):
        monkeypatch.setattr(
            Budget, "spent", property(lambda self, most=spent_after: len(calls) > most)
        )
        calls.clear()
        validation = validate_package(
            pte, (), PROGRAMS, {}, ValidateConfig(inputs=3, steps=2), {},
            open_lane=lambda name, sources: KeptLane(
                name, sources, {"count": (name,)}, results
            ),
        )  # fmt: skip
        assert validation.ok
        runs.append((validation.methods[0], list(calls)))
    (cut, first_calls), (whole, later_calls) = runs
    assert cut.left_out and not whole.left_out
    assert [run.origin for run in cut.runs] == [run.origin for run in whole.runs[: len(cut.runs)]]
    monkeypatch.undo()
    expected = validate_package(pte, (), PROGRAMS, {}, ValidateConfig(inputs=3, steps=2), {})
    assert [run.to_json() for run in whole.runs] == [
        run.to_json() for run in expected.methods[0].runs
    ]
    # Of the rounded values' calls, whose results were known, none is made again.
    assert RoundedSource in first_calls
    assert later_calls.count(RoundedSource) < len(whole.runs) * 2


class Branching(nn.Module):
    """Takes a branch by the sum of its inputs, and inside one of them another by their mean."""

    def forward(self, x):
        def inner(a):
            return torch.cond(a.mean() > 2, lambda b: b * 3.0, lambda b: b * 4.0, (a,))

        return torch.cond(x.sum() > 4, inner, lambda a: a * 2.0, (x,))


BRANCHING = {"run": export(Branching(), (torch.ones(4),))}


def watched_bodies(source):
    """Return a list of the bodies that run, which hooks fill."""
    ran = []
    for name, body in source.module.named_modules():
        if name:
            body.register_forward_pre_hook(lambda body, inputs, name=name: ran.append(name))
    return ran


def test_a_known_call_reports_the_bodies_that_it_ran(results, calls):
    ran = watched_bodies(Source(BRANCHING["run"]))
    expected = []
    for _ in range(2):
        ran.clear()
        again = lane(results, BRANCHING)
        for inputs in SETS:
            again.run("run", inputs)
            expected.append([*ran])
            ran.clear()
        assert len(calls) == len(SETS)
    outer = "true_graph_0"
    assert expected[:4] == expected[4:] == [
        ["false_graph_0"],
        [outer, f"{outer}.false_graph_0"],
        [outer, f"{outer}.true_graph_0"],
        [outer, f"{outer}.true_graph_0"],
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook"])
def test_a_hook_that_needs_values_makes_the_call_run(results, calls, kind):
    program = export(Branching(), (torch.ones(4),))
    body = Source(program).module.get_submodule("false_graph_0")
    options = {"with_kwargs": True} if kind == "forward_pre_hook" else {}
    getattr(body, f"register_{kind}")(lambda *values: None, **options)
    for _ in range(2):
        lane(results, {"run": program}).run("run", SETS[0])
    assert len(calls) == 2


def test_a_result_without_bodies_or_with_unknown_ones_is_not_used(results, calls, monkeypatch):
    assert not check_of(SOURCE_CALL)({"outputs": []})
    lane(results, BRANCHING).run("run", SETS[0])
    monkeypatch.setattr(Bodies, "__init__", lambda self, source: setattr(self, "_bodies", {}))
    lane(results, BRANCHING).run("run", SETS[0])
    assert len(calls) == 2


@pytest.mark.parametrize("examples, verdict", [(1, "not judged"), (3, "passed")])
def test_another_package_knows_the_branches_of_known_calls(
    results, calls, tmp_path, examples, verdict
):
    """It calls no source but to see that it is deterministic, and reports what the first did."""
    pte = tmp_path / "run.pte"
    pte.write_bytes(_packed(BRANCHING, {}).pte)
    measuring = object.__new__(SourceCallMeasuring)
    measuring._results, measuring._weights = results, DequantizedWeights()
    measuring._identify = lambda lane, method: (method,)
    settings = ValidateConfig(inputs=0, latency={"seconds": 0})
    methods = []
    for _ in range(2):
        calls.clear()
        # Another package has a program of its own, with the same content.
        programs = {"run": export(Branching(), (torch.ones(4),))}
        methods += validate_package(
            pte, (), programs, {"run": SETS[:examples]}, settings, {}, open_lane=measuring._open
        ).methods
    assert calls == [Source] * 2
    first, second = (method.to_json() for method in methods)
    assert first == second
    assert methods[1].verdict == verdict
    reason = "no call runs the true branch of cond"
    assert methods[1].verdict_reason.startswith(reason if verdict == "not judged" else "")
