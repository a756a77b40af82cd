import pickle

import pytest

from pipeline.store.errors import ConfigErrors, PipelineError, Problem, SourceError, did_you_mean


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (Problem("a.yaml", "methods.f", "is empty"), "a.yaml: methods.f: is empty"),
        (Problem("a.yaml", "", "is empty"), "a.yaml: is empty"),
        (
            Problem("a.yaml", "model", "is 1", "must be text"),
            "a.yaml: model: is 1; must be text",
        ),
    ],
)
def test_problem_is_one_line(problem, line):
    assert str(problem) == line


def test_problems_are_reported_once_and_in_one_order():
    first, second = Problem("a.yaml", "model", "x"), Problem("b.yaml", "emit", "y")
    error = ConfigErrors([second, first, second])
    assert error.problems == (first, second)
    assert str(error) == "a.yaml: model: x\nb.yaml: emit: y"
    assert str(ConfigErrors([first, second])) == str(error)


@pytest.mark.parametrize(
    "error",
    [
        PipelineError("x"),
        SourceError("x"),
        ConfigErrors([Problem("a", "b", "c", "d")]),
    ],
)
def test_errors_cross_a_process(error):
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, PipelineError)
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("word", "known", "said"),
    [
        ("partitoner", ["quantize", "partitioners"], "did you mean 'partitioners'? known: "),
        ("XNNPACK", ["xnnpack", "vulkan"], "did you mean 'xnnpack'? known: xnnpack, vulkan"),
        ("haed", ["model", "model.head"], "did you mean 'model.head'? known: "),
        ("zzz", ["xnnpack"], "known: xnnpack"),
        ("zzz", [], "known: none"),
    ],
)
def test_did_you_mean(word, known, said):
    assert did_you_mean(word, known).startswith(said)
    assert ("did you mean" in did_you_mean(word, known)) == ("did you mean" in said)
