"""Checks of a config against the methods of its model."""

from types import SimpleNamespace

from pipeline.plan.checks import check_methods
from pipeline.store.errors import Problem
from tests.support.configs import parse_config

DOCUMENT = SimpleNamespace(
    problem=lambda path, what, known="": Problem("f.yaml", path, what, known)
)


def problems(methods, known, **more):
    data = {"model": "m", "methods": {name: {"partitioners": []} for name in methods}, **more}
    found = check_methods(parse_config("p", data, "f.yaml"), DOCUMENT, known)
    return [str(problem) for problem in found]


def test_methods_are_those_of_the_model():
    assert problems(["encode"], ["encode"]) == []
    assert problems(["encode", "embed"], ["encode", "embedd"]) == [
        "f.yaml: methods.embed: is no method of the model; did you mean 'embedd'? "
        "known: encode, embedd",
        "f.yaml: methods: leaves out 'embedd', a method of the model; add it; "
        "`partitioners: []` is for portable operators only, `embedd: omit` leaves it out",
    ]
    omitted = {"encode": {"partitioners": []}, "embedd": "omit", "embde": "omit"}
    assert problems([], ["encode", "embedd"], methods=omitted) == [
        "f.yaml: methods.embde: is no method of the model; did you mean 'embedd'? "
        "known: encode, embedd",
    ]


def test_a_constant_method_may_not_be_a_method_of_the_model():
    lines = problems(["encode"], ["encode", "classify"], constant_methods={"classify": 1})
    assert lines[0] == "f.yaml: constant_methods.classify: is a method of the model too; rename it"
