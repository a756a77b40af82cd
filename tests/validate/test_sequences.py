"""Methods that share state, called one after another on one opened package."""

import copy
import json
from functools import cache

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch import nn
from torch.export import export

from pipeline.config.validation import ValidateConfig
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.session import INTERPRETER, Session
from pipeline.features.locating import interpreter
from pipeline.program.eager import Source, common_buffers
from pipeline.program.inputs import InputSet
from pipeline.validate.package import validate_package
from pipeline.validate.sequences import rounds, usual_sequences
from tests.devices.test_bindings import lowered, write
from tests.support.configs import parse_config


class State(nn.Module):
    def __init__(self, initial=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)
        self.register_buffer("cache", torch.full((2, 3), initial))


class Of(nn.Module):
    def __init__(self, state):
        super().__init__()
        self.state = state


class Prefill(Of):
    def forward(self, x):
        self.state.cache.add_(self.state.linear(x))
        return x * 2


class Decode(Of):
    def forward(self, x):
        self.state.cache.add_(x)
        return self.state.cache * 3


class Reads(Of):
    def forward(self, x):
        return self.state.cache + x


class Apart(Of):
    """State under another name."""

    def __init__(self, state):
        super().__init__(state)
        self.register_buffer("own", torch.zeros(2, 3))

    def forward(self, x):
        self.own.add_(x)
        return self.own * 1


METHODS = {"prefill": Prefill, "decode": Decode, "reads": Reads, "apart": Apart}
X = torch.arange(6.0).reshape(2, 3)
SETS = [InputSet((X + n,), {}, f"example {n}") for n in range(3)]
KEPT = [InitializedMutableBufferPass(["cache"])]


@cache
def programs(*names, initial=0.0):
    state = State(initial).eval().requires_grad_(False)
    return {name: export(METHODS[name](state), (X,)) for name in names}


@cache
def package(*names, shared=True, **config):
    """Return a package of the same programs, whose buffers share memory if `shared`."""
    initial = 1.0 if config.get("passes") else 0.0
    planning = MemoryPlanningPass(share_mutable_buffers=shared)
    own = copy.deepcopy(programs(*names, initial=initial))
    partitioners = {"prefill": [XnnpackPartitioner()]} if "prefill" in own else None
    made = lowered(
        own, partitioners, memory_planning_pass=planning, **{k: list(v) for k, v in config.items()}
    )
    return write(f"{'-'.join(names)}-{shared}-{len(config)}.pte", made.buffer)


def validate(pte, sources, sequences=None, **settings):
    config = ValidateConfig(**{"inputs": 0, "steps": 2, "atol": 1e-5, **settings})
    examples = dict.fromkeys(sources, SETS)
    return validate_package(pte, (), sources, examples, config, {}, sequences=sequences)


def method(validation, name):
    return next(m for m in validation.methods if m.method == name)


def together(validation, name):
    return [r for r in method(validation, name).runs if " > " in r.sequence]


def test_methods_that_share_a_buffer_are_called_one_after_another():
    both = programs("prefill", "decode")
    validation = validate(package("prefill", "decode"), both)
    assert validation.failures == ()
    title = "prefill > decode > decode from example"
    assert [(r.sequence, r.step, r.origin) for r in together(validation, "prefill")] == [
        (f"{title} 0", 1, "example 0"),
        (f"{title} 1", 1, "example 1"),
        (f"{title} 0, again", 1, "example 0"),
    ]
    assert [(r.step, r.origin) for r in together(validation, "decode")] == [
        *[(2, "example 0"), (3, "example 1")],
        *[(2, "example 1"), (3, "example 2")],
        *[(2, "example 0"), (3, "example 1")],
    ]
    assert not both["decode"].state_dict["state.cache"].any()  # unchanged
    record = validation.to_json()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert "failing" not in record["methods"][0]


def test_state_that_is_not_carried_from_method_to_method_fails():
    """For example in a package that plans each method separately."""
    both = programs("prefill", "decode")
    apart = package("prefill", "decode", shared=False)
    assert validate(apart, both, ()).failures == ()
    validation = validate(apart, both, [["prefill", "decode"]])
    assert {f.partition(" (")[0] for f in validation.failures} == {
        "decode: example 0",
        "decode: example 1",
    }
    assert (
        "(call 2 from prefill > decode from example 0), output: absolute error"
        in (validation.failures[0])
    )
    calls = method(validation, "decode").failing
    assert [(name, inputs.origin) for name, inputs in calls] == [
        ("prefill", "example 0"),
        ("decode", "example 0"),
    ]
    assert method(validation, "prefill").failing == ()


def test_state_that_is_not_reset_between_openings_fails(monkeypatch):
    kept = {}
    shared = interpreter.shared_memory
    monkeypatch.setattr(
        interpreter, "shared_memory", lambda plans: kept.setdefault("memory", shared(plans))
    )
    validation = validate(package("prefill", "decode"), programs("prefill", "decode"))
    assert validation.failures
    assert all("from prefill > decode > decode from example " in f for f in validation.failures)
    assert not any("> decode from example 0)" in f for f in validation.failures)  # the first time


def test_a_method_that_only_reads_the_state_shares_it():
    names = ("prefill", "reads")
    validation = validate(package(*names), programs(*names))
    assert validation.failures == ()
    assert len(together(validation, "reads")) == 6
    assert common_buffers(programs(*names)) == {"state.cache": names}


def test_initial_values_are_those_of_both():
    names = ("prefill", "decode")
    validation = validate(package(*names, passes=tuple(KEPT)), programs(*names, initial=1.0))
    assert validation.failures == ()
    bare = validate(package(*names), programs(*names, initial=1.0))
    assert "starts with values other than zeros" in bare.failures[0]


def test_sequences_as_the_config_says():
    names = ("prefill", "decode")
    asked = [["decode", "prefill", "decode"], ["decode", "decode"]]
    validation = validate(package(*names), programs(*names), asked)
    assert validation.failures == ()
    steps = [(r.sequence, r.step) for r in together(validation, "prefill")]
    assert steps[0] == ("decode > prefill > decode from example 0", 2)
    assert len(together(validation, "decode")) == 3 * 2 + 3 * 2


def test_what_did_not_run_alone_does_not_run_together():
    names = ("prefill", "decode")
    config = ValidateConfig(inputs=0, steps=2)
    reasons = {"decode": "needs a phone"}
    validation = validate_package(
        package(*names),
        (),
        programs(*names),
        dict.fromkeys(names, SETS),
        config,
        {},
        reasons,
        sequences=None,
    )
    assert validation.ok
    assert together(validation, "prefill") == []


def test_what_the_interpreter_can_not_load_is_skipped_and_told(monkeypatch):
    def refuse(self, methods):
        raise DeviceError("x: ", "does not load: missing operator a::b")

    monkeypatch.setattr(Session, "load_together", refuse)
    validation = validate(package("prefill", "decode"), programs("prefill", "decode"))
    assert validation.ok
    assert method(validation, "prefill").skipped == [
        (
            "prefill > decode > decode from example 0",
            "the interpreter: does not load: missing operator a::b",
        )
    ]


def test_usual_sequences_group_methods_by_what_they_share():
    assert usual_sequences(programs("prefill", "decode"), 3) == [("prefill", *["decode"] * 3)]
    assert usual_sequences(programs("decode", "apart", "prefill"), 2) == [
        ("decode", "prefill", "prefill")
    ]
    assert usual_sequences(programs("prefill", "decode", "reads"), 2) == [
        ("prefill", "decode", "decode", "reads", "reads")
    ]
    assert usual_sequences(programs("reads", "apart"), 2) == []


def test_rounds_take_the_sets_of_each_method_in_turn():
    sets = {"a": SETS[:1], "b": SETS}
    found = rounds(["a", "b", "b"], sets)
    assert [[(n, i.origin[-1]) for n, i in calls] for calls in found] == [
        [("a", "0"), ("b", "0"), ("b", "1")],
        [("a", "0"), ("b", "1"), ("b", "2")],
        [("a", "0"), ("b", "0"), ("b", "1")],
    ]


def test_sources_with_common_state_leave_their_programs_alone():
    both = programs("prefill", "decode", "reads")
    sources = Source.with_common_state(both)
    sources["decode"].run(SETS[1])
    assert torch.equal(sources["reads"].run(SETS[0])[0], X + 1 + X)
    assert torch.equal(Source(both["reads"]).run(SETS[0])[0], X)
    sources["prefill"].reset()
    assert torch.equal(sources["reads"].run(SETS[0])[0], X)


def test_devices_on_which_methods_share_no_state_say_so():
    files = PackageFiles.of(package("prefill", "decode"))
    with pytest.raises(DeviceError, match="methods share no state here: prefill, decode"):
        Session(files, "executorch").load_together(["prefill", "decode"])
    session = Session(files, INTERPRETER)
    session.load_together(["prefill", "decode"])
    session.run("decode", [X])
    assert torch.equal(session.run("decode", [X])[0], X * 6)
    alone = Session(files, INTERPRETER)
    assert torch.equal(alone.run("decode", [X])[0], X * 3)


def parsed(**more):
    methods = {name: {"partitioners": []} for name in ("prefill", "decode")}
    return parse_config("p", {"model": "m", "methods": methods, **more}, "p.yaml")


def test_what_a_config_asks_for():
    shared = {"emit": {"memory_planning": {"share_mutable_buffers": True}}}
    assert parsed().sequences == ()
    assert parsed(**shared).sequences is None
    written = {"validate": {"sequences": [["decode", "decode"]]}}
    assert parsed(**written).sequences == (("decode", "decode"),)
    assert parsed(**shared, validate={"sequences": []}).sequences == ()


class Writes(Of):
    def forward(self, x):
        self.state.cache.copy_(x)


class Misreads(Of):
    """Writes other values into the cache than `Writes` and `Prefill` do, and returns the same."""

    def forward(self, x):
        self.state.cache.copy_(x * 2)


class MisreadsPrefill(Of):
    def forward(self, x):
        self.state.cache.add_(x)
        return x * 2


@cache
def package_of(*classes):
    state = State().eval().requires_grad_(False)
    own = {f"m{n}": export(each(state), (X,)) for n, each in enumerate(classes)}
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    made = lowered(copy.deepcopy(own), None, memory_planning_pass=planning)
    return own, write("-".join(each.__name__ for each in classes) + ".pte", made.buffer)


@pytest.mark.parametrize(("writer", "wrong"), [(Writes, Misreads), (Prefill, MisreadsPrefill)])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_a_method_writes_is_read_whatever_the_order(writer, wrong, is_first):
    def order(writes):
        return (writes, Reads) if is_first else (Reads, writes)

    sources, pte = package_of(*order(writer))
    assert validate(pte, sources).failures == ()
    assert {m.verdict for m in validate(pte, sources).methods} == {"passed"}
    _, wrong_pte = package_of(*order(wrong))
    assert validate(wrong_pte, sources).failures
