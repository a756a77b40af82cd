import copy
import json
from functools import cache
from pathlib import Path

import pytest
import torch
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch import nn
from torch.export import Dim

from pipeline.config.validation import ValidateConfig
from pipeline.devices.interface import DeviceError
from pipeline.devices.session import Session
from pipeline.features.pages.markdown import markdown
from pipeline.moments import show_error
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.validate.package import validate_package
from tests.devices.test_bindings import (
    CONSTANTS,
    Counter,
    Encoder,
    exported,
    lowered,
    package_file,
    programs,
    split_package,
    write,
)

LIMITS = {"atol": 1e-5, "rtol": 1e-5, "steps": 3}
sources = cache(programs)
packed = cache(lambda name, build: write(f"{name}.pte", build().buffer))


def validate(
    pte, sources, /, examples=None, constants=None, ptds=(), not_run=None, crashes=None, **limits
):
    return validate_package(
        pte,
        ptds,
        sources,
        examples or {},
        ValidateConfig(**LIMITS | limits),
        constants or {},
        not_run,
        crashes=crashes,
    )


def validate_one(module, *args, build=None, examples=(), shapes=None, not_run=None, **limits):
    """Validate the package of a single method `run`; `build` makes it from other methods."""
    program = exported(module, *args, shapes=shapes)
    methods = {"run": program} if build is None else build
    pte = write("one.pte", lowered(copy.deepcopy(methods)).buffer)
    return validate(pte, {"run": program}, {"run": examples}, not_run=not_run, **limits)


def method(validation, name):
    return next(m for m in validation.methods if m.method == name)


def ones(origin="example 0", *shape):
    return InputSet((torch.ones(*(shape or (3,))),), {}, origin)


@pytest.fixture(scope="module")
def whole():
    return validate(package_file(), sources(), constants=CONSTANTS, min_sqnr=80.0)


def test_a_faithful_package_passes(whole):
    assert whole.failures == ()
    assert whole.ok
    assert [m.method for m in whole.methods] == [*sources(), *CONSTANTS]
    assert all(m.ok for m in whole.methods)
    assert method(whole, "encode").worst()["max_abs"] < 1e-6
    assert method(whole, "encode").worst()["sqnr_db"] > 100


def test_every_input_set_runs(whole):
    assert [run.origin for run in method(whole, "encode").runs] == [
        "generated 0 (seed 0): x.shape[0]=2",
        "generated 1 (seed 0): x.shape[0]=10",
        "generated 2 (seed 0): x.shape[0]=5",
    ]
    assert len(method(whole, "embed").runs[0].outputs) == 2
    assert [run.origin for run in method(whole, "get_rate").runs] == ["constant"]


def test_methods_with_state_run_in_sequences_that_each_begin_anew(whole):
    runs = method(whole, "count").runs
    assert method(whole, "count").state == ("total",)
    assert method(whole, "encode").state == ()
    names = [f"generated {n} (seed 0)" for n in range(3)]
    assert [run.sequence for run in runs] == [
        name for name in [*names, f"{names[0]}, again"] for _ in range(3)
    ]
    assert [run.step for run in runs] == [1, 2, 3] * 4
    assert [run.origin for run in runs[3:6]] == [names[1], names[2], names[0]]


def test_the_source_programs_stay_as_they_are(whole):
    program = exported(Counter(), torch.ones(3))
    pte = packed("counter", lambda: lowered({"count": exported(Counter(), torch.ones(3))}))
    inputs = ones()
    assert validate(pte, {"count": program}, {"count": [inputs]}).ok
    assert program.state_dict["total"].tolist() == [0, 0, 0]
    assert inputs.args[0].tolist() == [1, 1, 1]
    assert sources()["count"].state_dict["total"].tolist() == [0, 0, 0]


def test_the_record_is_strict_json_and_the_same_each_time_but_for_seconds(whole):
    record = whole.to_json()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    again = validate(package_file(), sources(), constants=CONSTANTS, min_sqnr=80.0).to_json()
    assert record.pop("seconds").keys() == again.pop("seconds").keys()
    assert record == again
    assert "seconds" not in json.dumps(record)
    assert record["settings"]["min_sqnr"] == 80.0
    assert record["worst"]["encode"] == record["methods"][0]["max_abs"]


def test_weights_of_another_seed_fail():
    pte = packed("seed", lambda: lowered({"encode": exported(Encoder(1), torch.ones(2, 4))}))
    program = exported(Encoder(0), torch.ones(2, 4))
    validation = validate(pte, {"encode": program}, {"encode": [ones("example 0", 2, 4)]})
    assert not validation.ok
    assert len(validation.failures) == 4
    first = validation.failures[0]
    assert first.startswith("encode: example 0, output: absolute error ")
    assert " exceeds " in first
    assert ", must be " in first
    assert method(validation, "encode").worst()["max_abs"] > 0.1


def test_the_limits_decide():
    pte = packed("seed", lambda: lowered({"encode": exported(Encoder(1), torch.ones(2, 4))}))
    program = {"encode": exported(Encoder(0), torch.ones(2, 4))}
    assert validate(pte, program, atol=100.0).ok
    sqnr = method(validate(pte, program, atol=100.0), "encode").worst()["sqnr_db"]
    assert validate(pte, program, atol=100.0, min_sqnr=sqnr - 0.1).ok
    validation = validate(pte, program, atol=100.0, min_sqnr=sqnr + 0.1)
    (sentence,) = validation.failures
    assert sentence.startswith("encode: generated ")
    assert sentence.endswith(f"SQNR {sqnr:.1f} dB is below {sqnr + 0.1:g} dB")


@pytest.mark.parametrize(
    ("limit", "figure", "words"),
    [
        ("max_mean_abs", "mean_abs", "mean absolute error {} exceeds {}"),
        ("max_p999_abs", "p999_abs", "99.9th percentile of the absolute error {} exceeds {}"),
        ("max_relative", "relative", "relative error {} exceeds {}"),
        ("min_cosine", "cosine", "cosine {} is below {}"),
        ("min_agreement", "agreement", "agreement of the greatest values in {} is below {}"),
    ],
)
def test_every_figure_has_a_limit_that_decides(limit, figure, words):
    pte = packed("seed", lambda: lowered({"encode": exported(Encoder(1), torch.ones(2, 4))}))
    program = {"encode": exported(Encoder(0), torch.ones(2, 4))}
    worst = method(validate(pte, program, atol=100.0, inputs=1), "encode").worst()[figure]
    assert worst is not None
    stricter, looser = (0.9, 1.1) if limit.startswith("max_") else (1.1, 0.9)
    if worst < 0:
        stricter, looser = looser, stricter
    assert validate(pte, program, atol=100.0, inputs=1, **{limit: worst * looser}).ok
    wanted = worst * stricter if worst else 0.25
    (sentence, *_) = validate(pte, program, atol=100.0, inputs=1, **{limit: wanted}).failures
    shown = f"{2 * worst:g} of 2 rows" if figure == "agreement" else f"{worst:.6g}"
    assert sentence.endswith(words.format(shown, f"{wanted:g}"))


def test_a_method_has_limits_of_its_own():
    pte = packed("seed", lambda: lowered({"encode": exported(Encoder(1), torch.ones(2, 4))}))
    program = {"encode": exported(Encoder(0), torch.ones(2, 4))}
    assert not validate(pte, program).ok
    validation = validate(pte, program, methods={"encode": {"atol": 100.0}})
    assert validation.ok
    assert validation.settings["atol"] == 1e-5
    limits = method(validation, "encode").to_json()["limits"]
    assert (limits["atol"], limits["rtol"], limits["min_sqnr"]) == (100.0, 1e-5, None)
    assert not validate(pte, program, atol=100.0, methods={"encode": {"atol": 1e-5}}).ok


def test_methods_that_are_missing_or_not_asked_for():
    pte = packed("seed", lambda: lowered({"encode": exported(Encoder(1), torch.ones(2, 4))}))
    validation = validate(pte, {"decode": sources()["encode"]}, constants={"get_length": 3})
    assert validation.failures == (
        "decode: the package lacks this method; it has encode",
        "get_length: the package lacks this method; it has encode",
        "encode: the package has this method, but its source does not",
    )
    assert [m.kind for m in validation.methods] == ["program", "program", "unknown"]


def test_constants_are_compared():
    wrong = CONSTANTS | {"get_length": 64, "get_rate": 1, "get_flags": [True, 3, 4]}
    validation = validate(package_file(), sources(), constants=wrong, inputs=1, steps=1)
    assert validation.failures == (
        "get_length: returns 128, must return 64",
        "get_rate: returns 0.5, must return 1",
        "get_flags: returns [True, 3], must return [True, 3, 4]",
    )


def test_state_whose_initial_values_the_package_lacks_fails():
    """ExecuTorch doesn't store mutable buffers' initial values unless a pass names the buffer."""
    program = exported(Counter(5.0), torch.ones(3))
    bare = packed("bare", lambda: lowered({"run": copy.deepcopy(program)}))
    validation = validate(bare, {"run": program}, {"run": [ones()]}, inputs=0)
    assert validation.failures[0].startswith(
        "run: example 0 (call 1 from example 0), output: absolute error 10 at [0] (2, must be 12)"
    )
    assert "total starts with values other than zeros" in validation.failures[0]
    assert "total starts" not in validation.failures[1]
    kept = [InitializedMutableBufferPass(["total"])]
    whole = packed("kept", lambda: lowered({"run": copy.deepcopy(program)}, passes=kept))
    assert validate(whole, {"run": program}, {"run": [ones()]}).failures == ()


class Forgetful(Counter):
    """Counter, with its state lost after each call."""

    def forward(self, x):
        return (self.total + x) * 2


def test_state_that_is_not_kept_fails_at_the_second_call():
    program = exported(Counter(), torch.ones(3))
    pte = packed("forgetful", lambda: lowered({"run": exported(Forgetful(), torch.ones(3))}))
    validation = validate(pte, {"run": program}, {"run": [ones()]}, inputs=0, steps=2)
    assert [sentence.split(",")[0] for sentence in validation.failures] == [
        "run: example 0 (call 2 from example 0)",
        "run: example 0 (call 2 from example 0",
    ]
    assert validate(pte, {"run": program}, {"run": [ones()]}, inputs=0, steps=1).ok


class Root(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)


class Quiet(nn.Module):
    def forward(self, x):
        return torch.sqrt(x.abs())


def test_nan_in_the_package_alone_fails_and_in_both_passes():
    negative = InputSet((torch.tensor([4.0, -1.0, 9.0]),), {}, "example 0")
    root = exported(Root(), torch.ones(3))
    quiet = exported(Quiet(), torch.ones(3))
    pte = packed("root", lambda: lowered({"run": exported(Root(), torch.ones(3))}))
    validation = validate(pte, {"run": quiet}, {"run": [negative]}, inputs=0, atol=100.0)
    assert validation.failures == (
        "run: example 0, output: 1 value NaN or infinite, but not on both sides, as at [1] "
        "(nan, must be 1)",
    )
    assert validation.to_json()["methods"][0]["max_abs"] == "inf"
    validation = validate(pte, {"run": root}, {"run": [negative]}, inputs=0)
    assert validation.ok
    assert method(validation, "run").runs[0].outputs[0].nonfinite == 1


def test_an_example_of_a_wrong_dtype_fails_and_the_others_run():
    pte = packed("root", lambda: lowered({"run": exported(Root(), torch.ones(3))}))
    wrong = InputSet((torch.ones(3).double(),), {}, "example 0")
    program = exported(Root(), torch.ones(3))
    validation = validate(pte, {"run": program}, {"run": [wrong, ones("example 1")]}, inputs=0)
    assert validation.failures == ("run: example 0: argument 'x': dtype float64, must be float32",)
    assert [run.origin for run in method(validation, "run").runs] == ["example 1"]


def test_a_method_that_nothing_ran_fails():
    pte = packed("root", lambda: lowered({"run": exported(Root(), torch.ones(3))}))
    program = {"run": exported(Root(), torch.ones(3))}
    sentence = "run: no input set ran: provide examples, or let inputs be generated"
    assert validate(pte, program, inputs=0).failures == (sentence,)
    assert validate(pte, program, inputs=1).ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b.replace(b"XnnpackBackend", b"OtherBackend.."), "missing backend"),
        (lambda b: b.replace(b"aten::embedding", b"aten::embeddinx"), "missing operator"),
    ],
)
def test_a_method_that_does_not_load_fails_and_the_others_run(change, words):
    pte = write("broken.pte", change(package_file().read_bytes()))
    validation = validate(pte, sources(), constants=CONSTANTS)
    (sentence,) = validation.failures
    assert f" does not load: {words}" in sentence
    assert sum(m.ok for m in validation.methods) == len(validation.methods) - 1


class Next(nn.Module):
    """Looks up the next row, so that the runtime fails at its second instruction."""

    def __init__(self, rows):
        super().__init__()
        self.table = nn.Embedding(rows, 2)
        self.table.weight.data = torch.arange(2.0 * rows).reshape(rows, 2)

    def forward(self, tokens):
        return self.table(tokens + 1)


def test_a_run_that_fails_is_a_failure_of_its_input_set_alone():
    """The package's table is smaller than the source's, which only one of the inputs reveals."""
    examples = [[0, 3], [0, 1]]
    sets = [InputSet((torch.tensor(e),), {}, f"example {n}") for n, e in enumerate(examples)]
    build = {"run": exported(Next(3), torch.tensor([0, 1]))}
    validation = validate_one(Next(5), torch.tensor([0, 1]), build=build, examples=sets, inputs=0)
    (sentence,) = validation.failures
    assert sentence.startswith("run: example 0: fails: wrong dtype or number of inputs")
    assert "indices_ptr[1] 4 >= weight.size(0) 3" in sentence
    assert [run.origin for run in method(validation, "run").runs] == ["example 1"]


def test_a_package_that_does_not_open_fails_as_a_whole():
    pte = write("garbage.pte", b"no package" * 100)
    validation = validate(pte, sources())
    assert validation.failures[0].startswith("garbage.pte: does not open: corrupt file (0x23)")
    assert not validation.ok
    assert validation.methods == ()


class Added(nn.Module):
    def forward(self, x, y):
        return x + y


class Cast(nn.Module):
    def forward(self, x):
        return x.to(torch.float64)


@pytest.mark.parametrize(
    ("packaged", "example", "sentence"),
    [
        (Added(), (torch.ones(3), torch.ones(3)), "declares 2 inputs, must be 1"),
        (
            Root(),
            (torch.ones(3).double(),),
            "input 'x' is declared with dtype torch.float64, must be torch.float32",
        ),
        (Root(), (torch.ones(3, 1),), "input 'x' is declared with rank 2, must be 1"),
        (Root(), (torch.ones(4),), "input 'x': declares size 4, must be 3 at dimension 0"),
        (
            Cast(),
            (torch.ones(3),),
            "output is declared with dtype torch.float64, must be torch.float32",
        ),
    ],
)
def test_declared_inputs_and_outputs_are_compared(packaged, example, sentence):
    build = {"run": exported(packaged, *example)}
    validation = validate_one(Root(), torch.ones(3), build=build)
    assert f"run: {sentence}" in validation.failures
    assert method(validation, "run").runs == []


def test_a_method_with_other_inputs_has_its_code():
    build = {"run": exported(Added(), torch.ones(3), torch.ones(3))}
    (failure, *_) = validate_one(Root(), torch.ones(3), build=build).failures
    assert show_error(failure, "validate").endswith(" [PTE503]")


class Scales(nn.Module):
    """Scales its weight in place, as transformers' RWKV does."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return x * self.weight.mul_(2)


def test_parameters_that_are_returned_as_well_are_told():
    validation = validate_one(Scales(), torch.ones(3))
    assert validation.failures == (
        "run: declares 2 outputs, must be 1; parameters that a program changes are returned before "
        "its results",
    )


def test_a_package_with_less_room_than_the_source_promises_fails():
    build = {"run": exported(Root(), torch.ones(3), shapes=({0: Dim("n", max=8)},))}
    shapes = ({0: Dim("n", max=20)},)
    validation = validate_one(Root(), torch.ones(3), build=build, shapes=shapes)
    assert validation.failures == (
        "run: input 'x': declares room for size 8, but the source accepts up to 20 at dimension 0",
    )


def test_what_cannot_run_here_is_not_run_but_its_declarations_are_compared():
    reasons = {"run": "SomeBackend: needs a phone"}
    passed = validate_one(Root(), torch.ones(3), not_run=reasons)
    assert passed.ok and method(passed, "run").runs == []
    record = method(passed, "run").to_json()
    assert record["not_run"] == "SomeBackend: needs a phone"
    assert record["max_abs"] is None and passed.to_json()["worst"] == {"run": None}
    build = {"run": exported(Root(), torch.ones(4))}
    failed = validate_one(Root(), torch.ones(3), build=build, not_run=reasons)
    assert failed.failures[0] == "run: input 'x': declares size 4, must be 3 at dimension 0"


def test_what_xnnpack_has_no_kernels_of_for_this_processor_is_not_run(monkeypatch):
    def refuse(session, name):
        reason = "does not load: internal error (0x1); XNN Runtime creation failed with code: "
        raise DeviceError(f"one.pte: method '{name}' ", f"{reason}xnn_status_unsupported_hardware")

    monkeypatch.setattr(Session, "load", refuse)
    run = validate_one(Encoder(), torch.randn(2, 4)).methods[0]
    assert run.verdict == "not run" and run.ok
    assert "XNNPACK has no kernels for it on this processor" in run.verdict_reason


def test_a_method_that_takes_a_text_is_not_run():
    class Mode(nn.Module):
        def forward(self, x, mode="exact"):
            return x.relu() if mode == "exact" else x

    passed = validate_one(Mode(), torch.ones(3), "exact")
    assert passed.ok and method(passed, "run").runs == []
    reason = "input 'mode' is a text, which ExecuTorch's bindings for Python can't pass"
    assert method(passed, "run").not_run == reason


def test_a_method_that_ended_a_process_is_not_run_and_fails(monkeypatch):
    names = ["encode", "count"]
    pte, programs = package_file(), {name: sources()[name] for name in names}
    validation = validate(pte, programs, crashes={"encode": "ends the process"})
    assert validation.failures[0] == "encode: ends the process"
    crashed = method(validation, "encode")
    assert crashed.runs == [] and crashed.not_run == "ends the process"
    assert method(validation, "count").ok and method(validation, "count").runs
    monkeypatch.setattr(Session, "methods", lambda _: pytest.fail("opened"))
    unopened = validate(pte, programs, crashes={"encode": "", "": "ends the process"})
    assert unopened.failures == (f"{pte.name}: ends the process",) and not unopened.methods


def test_a_dimension_without_a_maximum_fails_with_the_remedy():
    """Without a warning, ExecuTorch plans memory there for the example's size."""
    validation = validate_one(Root(), torch.ones(3), shapes=({0: Dim("n")},))
    (sentence,) = validation.failures
    assert "declares room for size 3, but the source has no limit" in sentence
    assert "without a maximum in the export" in sentence


class InPlace(nn.Module):
    def forward(self, x, y):
        y.mul_(2)
        x.add_(1)
        return x * y


def test_inputs_that_a_method_changes_are_outputs_of_the_package():
    source = Source(exported(InPlace(), torch.ones(3), torch.ones(3)))
    assert [name for name, _ in source.outputs] == [
        "input 'x' after the call",
        "input 'y' after the call",
        "output",
    ]
    assert source.state == ()
    inputs = InputSet((torch.ones(3), torch.ones(3)), {}, "example 0")
    validation = validate_one(InPlace(), torch.ones(3), torch.ones(3), examples=[inputs])
    assert validation.failures == ()
    assert len(method(validation, "run").runs[0].outputs) == 3
    assert inputs.args[0].tolist() == [1, 1, 1]


class Rows(nn.Module):
    def forward(self, x):
        return x.view(-1, 4).sum(1)


def test_generated_sets_that_the_source_refuses_are_left_out_and_told():
    """`Dim.AUTO` leaves the rule that 4 divides the size out of the range. The upper bound comes
    from the example, so the package declares no larger one."""
    program = exported(Rows(), torch.ones(8), shapes=({0: Dim.AUTO},))
    pte = write("rows.pte", lowered({"run": copy.deepcopy(program)}).buffer)
    bound = next(iter(program.range_constraints))
    ranges = program.range_constraints[bound]
    program.range_constraints[bound] = type(ranges)(1, 8)
    validation = validate(pte, {"run": program}, inputs=2)
    assert validation.failures == ()
    assert [run.origin for run in method(validation, "run").runs] == [
        "generated 1 (seed 0): x.shape[0]=8"
    ]
    ((origin, reason),) = method(validation, "run").skipped
    assert origin.endswith("x.shape[0]=1")
    assert reason.startswith("the source program itself fails: RuntimeError: ")


def test_an_example_that_the_source_refuses_fails():
    table = nn.Embedding(3, 2)
    example = InputSet((torch.tensor([1, 7]),), {}, "example 0")
    validation = validate_one(table, torch.tensor([1, 2]), examples=[example], inputs=0)
    (sentence,) = validation.failures
    assert sentence.startswith("run: example 0: the source program itself fails: IndexError: ")


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Counter(1.0)
        self.register_buffer("steps", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.steps += 1
        return self.inner(x) + self.steps


class Filling(nn.Module):
    """Fills its cache, and raises once the cache is full."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("cache", torch.zeros(size, 3))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        self.cache.index_copy_(0, self.place, x.unsqueeze(0))
        self.place.add_(1)
        return self.cache.sum(0)


def test_a_source_may_take_only_so_many_calls_in_a_row():
    validation = validate_one(Filling(2), torch.ones(3), examples=[ones()])
    assert not validation.failures
    places = [origin for origin, _ in method(validation, "run").skipped]
    assert "generated 1 (seed 0) (call 3 from example 0)" in places
    (failure, *_) = validate_one(Filling(1), torch.ones(3), examples=[ones()], steps=2).failures
    assert "the source program itself fails: IndexError: " in failure


def test_state_in_submodules_is_copied_and_reset():
    program = exported(Nested(), torch.ones(3))
    source = Source(program)
    assert sorted(source.state) == ["inner.total", "steps"]
    assert source.nonzero == ("inner.total",)
    calls = [source.run(ones())[0][0].item() for _ in range(2)]
    assert calls == [5.0, 8.0]
    source.reset()
    assert source.run(ones())[0][0].item() == 5.0
    fresh = Source(program)
    assert fresh.run(ones())[0][0].item() == 5.0


def test_returned_state_is_not_the_state_itself():
    class Returned(Counter):
        def forward(self, x):
            self.total.add_(x)
            return self.total

    source = Source(exported(Returned(), torch.ones(3)))
    first = source.run(ones())
    source.run(ones())
    assert first[0].tolist() == [1, 1, 1]


def test_external_data():
    pte, ptds, program = split_package()
    assert validate(pte, {"forward": program}, ptds=ptds).failures == ()
    (sentence,) = validate(pte, {"forward": program}).failures
    assert sentence.startswith("forward: does not load: invalid state")


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 2, 3)

    def forward(self, x):
        return self.conv(x)


def test_examples_run_in_the_layout_of_the_export():
    x = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    for layout in (torch.contiguous_format, torch.channels_last):
        sets = [
            InputSet((x.to(memory_format=given),), {}, str(given))
            for given in (torch.contiguous_format, torch.channels_last)
        ]
        like = x.to(memory_format=layout)
        assert validate_one(Conv(), like, examples=sets, atol=1e-4).failures == ()


def test_what_torch_raises_outside_a_run_fails_that_method_alone(monkeypatch, capsys):
    pte = packed("root", lambda: lowered({"run": exported(Root(), torch.ones(3))}))
    program = exported(Root(), torch.ones(3))

    def module(**_):
        raise NotImplementedError("no kernel\nfor it")

    monkeypatch.setattr(program, "module", module)
    validation = validate(pte, {"run": program}, constants={"get_length": 3})
    what = "run: validation stopped at NotImplementedError: no kernel; for it"
    assert validation.failures[0] == what
    assert len(validation.failures) == 2
    assert "Traceback" in capsys.readouterr().err


def test_the_package_is_named_without_its_folder(whole):
    assert whole.to_json()["package"] == "all.pte"
    assert str(Path(package_file()).parent) not in json.dumps(whole.to_json())


def test_the_record_makes_a_report(whole):
    said = "# all.pte: passed\n\n5 methods match their sources, within the limits ("
    assert markdown(whole.to_json()).startswith(said)
    failed = validate(package_file(), {"decode": sources()["encode"]}, inputs=1, steps=1)
    assert "| the package lacks this method" in markdown(failed.to_json())


def test_the_calls_that_fail_first_are_remembered():
    pte = packed("seed", lambda: lowered({"encode": exported(Encoder(1), torch.ones(2, 4))}))
    program = exported(Encoder(0), torch.ones(2, 4))
    given = ones("example 0", 2, 4)
    found = method(validate(pte, {"encode": program}, {"encode": [given]}), "encode")
    assert [(name, inputs.origin) for name, inputs in found.failing] == [("encode", "example 0")]
    assert "failing" not in found.to_json()


def test_of_a_sequence_the_calls_up_to_the_failing_one_are_remembered():
    class Late(Counter):
        def forward(self, x):
            self.total.add_(x)
            return self.total * 2 + (self.total > 2.5) * 1e-3

    pte = packed("counter", lambda: lowered({"count": exported(Counter(), torch.ones(3))}))
    program = exported(Late(), torch.ones(3))
    found = method(validate(pte, {"count": program}, {"count": [ones()]}, inputs=0), "count")
    assert [name for name, _ in found.failing] == ["count"] * 3
