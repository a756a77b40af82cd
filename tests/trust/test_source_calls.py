"""A source's result is reused only for the same call: each part of its key counts."""

import torch

from pipeline.features.source_calls import key as keys
from pipeline.features.source_calls.key import hash_inputs, source_call_key
from pipeline.program.inputs import InputSet
from pipeline.store.digest import hash_json

X = torch.arange(6.0).reshape(2, 3)
PROGRAMS = {"fill": ("program a", "names a", None), "read": ("program b", "names b", None)}
CALLS = [("fill", "x", 0), ("read", "y", 1)]


def key_of(lane="source", programs=PROGRAMS, calls=CALLS):
    return hash_json(source_call_key(lane, programs, calls))


def test_each_part_of_a_call_is_in_its_key():
    fill, read = PROGRAMS.values()
    mutants = {
        "lane": key_of(lane="rounded"),
        "program": key_of(programs={"fill": ("program c", *fill[1:]), "read": read}),
        "names": key_of(programs={"fill": fill, "read": (read[0], "names c", None)}),
        "quantized": key_of(programs={"fill": fill, "read": (*read[:2], "quantized")}),
        "a method less": key_of(programs={"fill": fill}),
        "whose state is first": key_of(programs={"read": read, "fill": fill}),
        "inputs": key_of(calls=[CALLS[0], ("read", "z", 1)]),
        "seed": key_of(calls=[CALLS[0], ("read", "y", 2)]),
        "an earlier call": key_of(calls=[("fill", "z", 0), CALLS[1]]),
        "its method": key_of(calls=[("read", "x", 0), CALLS[1]]),
        "no earlier call": key_of(calls=CALLS[1:]),
    }
    assert len({key_of(), *mutants.values()}) == len(mutants) + 1
    assert key_of() == key_of()


def test_code_libraries_and_machine_are_in_the_key(monkeypatch):
    found = {key_of()}
    for name, value in (("common_fields", lambda kind: {"code": kind}), ("host", lambda: "other")):
        with monkeypatch.context() as context:
            context.setattr(keys, name, value)
            keys._environment.cache_clear()
            found.add(key_of())
    keys._environment.cache_clear()
    assert len(found) == 3
    assert keys._environment().keys() >= {"code", "toolchain", "host"}


def test_inputs_count_by_their_values_and_nesting_and_not_by_their_layout():
    mutants = [
        InputSet((X + 1,)),
        InputSet((X.double(),)),
        InputSet((X.reshape(3, 2),)),
        InputSet((X[:1],)),
        InputSet(([X],)),
        InputSet((), {"x": X}),
        InputSet((), {"y": X}),
        InputSet((X, 1)),
        InputSet((X, True)),
        InputSet((X, 1.0)),
        InputSet((X, None)),
    ]
    digests = {hash_inputs(inputs) for inputs in mutants}
    assert len(digests) == len(mutants) and hash_inputs(InputSet((X,))) not in digests
    laid_out = X.t().contiguous().t()
    assert laid_out.stride() != X.stride()
    assert hash_inputs(InputSet((laid_out,))) == hash_inputs(InputSet((X,), origin="example 3"))
