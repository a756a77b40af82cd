"""Configs made from several files: the result, the origin of each value, and the mistakes."""

import itertools
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.compose import Folder, merge
from pipeline.config.parser import parse_document
from pipeline.config.variables import Variables
from pipeline.config.yaml import Node, load_nodes, plain, read_scalar
from pipeline.features.explain.resolved import resolved_view
from pipeline.plan.plan import Plan
from pipeline.store.errors import (
    PipelineError,
    Problem,
    find_widespread,
    format_new_problems,
)
from pipeline.store.settings import Environment
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.config.test_parser import DOCUMENTS
from tests.support.bench import REPOSITORY
from tests.support.configs import environment, read_configs

BASE = """\
model: m
target: android
defaults:
  partitioners: [xnnpack]
  quantize: {quantizer: xnnpack, per_channel: false}
validate:
  atol: 0.5
  gates: {max_size: 1MB}
"""


@pytest.fixture
def write(tmp_path):
    """Return a function that writes configs, keyed by stem, and reads the folder."""

    def write(_environment=None, **files):
        for stem, text in files.items():
            name = stem if "." in stem else f"{stem}.yaml"
            (tmp_path / name).write_text(text)
        return read_configs(tmp_path, _environment or {})

    return write


def problems(found, package):
    return [str(problem).partition("/")[2] for problem in found.problems[package]]


def data(found, package):
    assert not found.problems
    return found.documents[package].data


def test_keys_that_are_no_text_are_reported_where_they_stand(write):
    keys = "true: {x: 1}\n  2.5: {x: 1}\n  null: {x: 1}\n"
    found = write(p=f"model: m\nmethods:\n  {keys}")
    assert {problem.line for problem in found.problems["p"]} == {3, 4, 5}


def test_pyyaml_without_libyaml_will_do():
    lines = "import yaml; del yaml.CSafeLoader", "from pipeline.config import yaml"
    script = "; ".join([*lines, "print(yaml.plain(yaml.load_nodes(b'a: [1, x]', 'f')))"])
    run = [sys.executable, "-c", script]
    printed = subprocess.run(run, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert printed.stdout == "{'a': [1, 'x']}\n"


# extends


def test_a_config_extends_a_base(write):
    found = write(_base=BASE, p="extends: _base\nmethods: {f: {}}\nvalidate: {rtol: 0.25}\n")
    assert list(found.configs) == ["p"]
    assert data(found, "p") == {
        "model": "m",
        "target": "android",
        "methods": {
            "f": {
                "partitioners": ["xnnpack"],
                "quantize": {"quantizer": "xnnpack", "per_channel": False},
            }
        },
        "validate": {"atol": 0.5, "gates": {"max_size": "1MB"}, "rtol": 0.25},
    }


def test_an_ordinary_config_can_be_extended(write):
    found = write(a="model: m\nmethods: {f: {partitioners: []}}\n", b="extends: a\ntarget: t\n")
    assert data(found, "b") == {**data(found, "a"), "target": "t"}
    assert found.configs["b"].package == "b"


def test_later_bases_stand_on_earlier_ones_and_lists_are_replaced(write):
    found = write(
        _a="model: a\ntarget: a\nmethods: {f: {partitioners: [xnnpack, xnnpack]}}\n",
        _b="model: b\nmethods: {f: {partitioners: [xnnpack]}}\n",
        p="extends: [_a, _b]\n",
    )
    assert data(found, "p") == {
        "model": "b",
        "target": "a",
        "methods": {"f": {"partitioners": ["xnnpack"]}},
    }


def test_a_base_of_two_bases_counts_once_and_first(write):
    """A change by `_left` to the base that it shares with `_right` persists."""
    found = write(
        _top="model: m\ntarget: top\nmethods: {f: {partitioners: []}}\n",
        _left="extends: _top\ntarget: left\n",
        _right="extends: _top\nvalidate: {atol: 0.5}\n",
        p="extends: [_left, _right]\n",
    )
    assert data(found, "p")["target"] == "left"


@pytest.mark.parametrize("empty", ["", " ~", " null"])
def test_an_empty_value_takes_away(write, empty):
    found = write(
        _base=BASE + "methods: {f: {}, g: {}}\n",
        p=f"extends: _base\ntarget:{empty}\nmethods:\n  f:\n    quantize:{empty}\n  g:{empty}\n"
        f"validate:\n  gates:{empty}\n",
    )
    assert data(found, "p") == {
        "model": "m",
        "methods": {"f": {"partitioners": ["xnnpack"]}},
        "validate": {"atol": 0.5},
    }


def test_what_was_taken_away_of_a_method_does_not_come_back_from_the_defaults(write):
    found = write(
        _base=BASE + "methods:\n  f: {quantize: {quantizer: xnnpack}}\n",
        p="extends: _base\nmethods: {f: {quantize: null}}\n",
    )
    assert "quantize" not in data(found, "p")["methods"]["f"]


def test_defaults_themselves_can_be_taken_away(write):
    found = write(_base=BASE, p="extends: _base\ndefaults:\nmethods: {f: {partitioners: []}}\n")
    assert data(found, "p")["methods"] == {"f": {"partitioners": []}}


def test_an_empty_value_with_nothing_to_take_away_is_a_mistake(write):
    found = write(_base=BASE, p="extends: _base\nmethods: {f: {}}\nemit:\n")
    assert problems(found, "p") == ["p.yaml:3: emit: is empty; give it a value or leave it out"]


EXTENDS = [
    (
        "extends: _bse\n",
        "p.yaml:1: extends: no config '_bse'; did you mean '_base'? known: _base, ",
    ),
    ("extends: [_base, 3]\n", "p.yaml:1: extends[1]: no config 3; known: "),
    ("extends:\n- _base\n- q\n", "p.yaml:3: extends[1]: no config 'q'; known: "),
    ("extends: {}\n", "p.yaml:1: extends: is an empty mapping, must be the name of a config or a"),
    ("extends: []\n", "p.yaml:1: extends: is an empty list, must be the name of a config or a"),
    ("extends:\n", "p.yaml:1: extends: is empty, must be the name of a config or a list of names"),
    ("extends: [[_base]]\n", "p.yaml:1: extends: is a list, must be the name of a config or a"),
    ("extends: p\n", "p.yaml:1: extends: is circular: p -> p; remove one of them"),
    ("extends: _loop\n", "_loop.yaml:1: extends: is circular: _loop -> _pool -> _loop; remove"),
    ("extends: _pool\n", "_loop.yaml:1: extends: is circular: _loop -> _pool -> _loop; remove"),
    ("extends: _two\n", "p.yaml:1: extends: '_two' is both {f}/_two.yaml and {f}/_two.yml; keep"),
    ("extends: _no\n", "_no.yaml:2: is not valid YAML: "),
    ("extends: ${X}\n", "p.yaml:1: extends: the variable X is not set, and has no default; set it"),
]


@pytest.mark.parametrize(("text", "reported"), EXTENDS)
def test_what_is_wrong_with_extends(write, tmp_path, text, reported):
    found = write(
        _base=BASE,
        _loop="extends: _pool\n",
        _pool="extends: _loop\n",
        _no="model: [\n",
        p=text,
        **{"_two.yaml": "", "_two.yml": ""},
    )
    (problem,) = problems(found, "p")
    assert problem.startswith(reported.replace("{f}", tmp_path.name)), problem


def test_a_mistake_of_a_base_is_reported_of_its_place_there(write):
    base = (
        "model: m\ntargt: x\ndefaults:\n  partitioners:\n    - nope\n  qantize: {}\n"
        "validate:\n  gates:\n    max_size: huge\n"
    )
    found = write(
        _base=base, a="extends: _base\nmethods: {f: {}, g: {}}\n", b="extends: a\ntarget: b\n"
    )
    reported = [
        "_base.yaml:2: unknown key 'targt'; did you mean 'target'? known: ",
        "_base.yaml:5: defaults.partitioners[0]: unknown partitioner 'nope'; known: ",
        "_base.yaml:6: defaults: unknown key 'qantize'; did you mean 'quantize'? known: ",
        "_base.yaml:9: validate.gates.max_size: is 'huge', must be a size such as 40MB; units: ",
    ]
    assert problems(found, "a") == problems(found, "b")
    for line, words in zip(problems(found, "a"), reported, strict=True):
        assert line.startswith(words)
    assert ", extends, defaults, matrix, package" in problems(found, "a")[0]
    already: dict[Problem, str] = {}
    assert len(list(format_new_problems(found.problems["a"], "a", already))) == 4
    assert list(format_new_problems(found.problems["a"], "a", already)) == []  # another method
    (line,) = format_new_problems(found.problems["b"], "b", already)
    assert line.endswith("_base.yaml: 4 mistakes reported for a")


def test_what_is_wrong_in_many_configs_is_told_once(write):
    names = [f"p{number}" for number in range(60)]
    found = write(**dict.fromkeys(names, "extends: _gone\ntarget: phone\n"))
    packages = {name: found.problems[name] for name in names}
    widespread = find_widespread(packages)
    reported: dict[Problem, str] = {}
    lines = []
    for name, wrong in packages.items():
        lines += format_new_problems(wrong, name, reported, widespread)
        lines += format_new_problems(wrong, name, reported, widespread)  # for another method
    (line,) = [line for line in lines if "extends" in line]
    assert "p0.yaml:1: extends: no config '_gone'; known: p0, p1, " in line
    assert line.endswith("; also in p1, p2, p3 and 56 more")


def test_a_config_is_no_suggestion_for_what_it_extends(write):
    found = write(phone="extends: phon\nmodel: m\n")
    assert not any("did you mean" in line for line in problems(found, "phone"))


def test_what_is_missing_is_reported_of_the_file_that_lacks_it(write):
    found = write(_base="model: m\n", p="extends: _base\nmethods:\n  f: {}\n", q="extends: _base\n")
    assert problems(found, "p") == [
        "p.yaml:3: methods.f.partitioners: is missing; "
        "write `partitioners: []` for portable operators only"
    ]
    assert problems(found, "q") == ["q.yaml: methods: is missing; name every method of the model"]


def test_a_base_that_nobody_extends_says_nothing(write):
    assert write(_base="nonsense: [\n").packages == []


# defaults


def test_defaults_are_for_methods_that_are_named(write):
    found = write(
        p="model: m\ndefaults: {partitioners: [xnnpack]}\n"
        "methods: {encode: {}, decode: {partitioners: []}}\n"
    )
    assert data(found, "p")["methods"] == {
        "encode": {"partitioners": ["xnnpack"]},
        "decode": {"partitioners": []},
    }
    assert "methods: is missing" in problems(write(p="model: m\ndefaults: {}\n"), "p")[0]


def test_a_method_that_takes_all_defaults_says_so(write):
    found = write(p="model: m\ndefaults: {partitioners: []}\nmethods:\n  f:\n")
    assert problems(found, "p") == ["p.yaml:4: methods.f: is empty; write `{}` to use the defaults"]


@pytest.mark.parametrize("value", ["3", "[xnnpack]", ""])
def test_defaults_must_be_a_mapping(write, value):
    found = write(p=f"model: m\ndefaults: {value}\nmethods: {{f: {{partitioners: []}}}}\n")
    (problem,) = problems(found, "p")
    assert problem.startswith("p.yaml:2: defaults: is ")
    assert problem.endswith(", must be a mapping; write settings for every method")


# Variables


def filled(text, values=(), matrix=None):
    """Fill in an unquoted value; return it and its problems."""
    variables = Variables(environment(dict(values)), matrix)
    node = variables.fill(Node(text, "f.yaml", "path", 7, plain=True))
    return node.value, [str(problem) for problem in variables.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "x y"),
        ("${B}", 5),
        ("${C}", 0.5),
        ("${D}", True),
        ("${EMPTY}", None),
        ("${EMPTY:-3}", 3),
        ("${NONE:-1e-4}", 1e-4),
        ("${NONE:-}", None),
        ("${NONE:-a:-b}", "a:-b"),
        ("v${B}", "v5"),
        ("${B}${B}", "55"),
        ("${NONE:-a}-${EMPTY}-${D}", "a--true"),
        ("$${B}", "${B}"),
        ("$$", "$"),
        ("$$$$", "$$"),
        ("100$$", "100$"),
        ("$$${B}", "$5"),
        ("${matrix.n}", 7),
        ("n${matrix.n}-${matrix.on}", "n7-true"),
    ],
)
def test_variables_are_filled_in(text, value):
    values = {"A": "x y", "B": "5", "C": "0.5", "D": "true", "EMPTY": ""}
    found, reported = filled(text, values, {"n": 7, "on": True})
    assert (found, type(found), reported) == (value, type(value), [])


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("${NONE}", "the variable NONE is not set, and has no default; set it, or write ${NONE:-"),
        ("a${NONE}b", "the variable NONE is not set, and has no default; set it, or write"),
        ("$A", "`$A` is not a variable; write ${NAME} or ${NAME:-default}, and $$ for a dollar"),
        ("a$", "`$` is not a variable; write"),
        ("${}", "`${}` is not a variable"),
        ("${A", "`${A` is not a variable"),
        ("${A-b}", "`${A-b}` is not a variable"),
        ("${A:?b}", "`${A:?b}` is not a variable"),
        ("${A:-${B}}", "`${A:-${B}` is not a variable"),
        ("${1A}", "`${1A}` is not a variable"),
        ("${ON}", "`on` has different meanings in YAML 1.1 and 1.2: the value of the variable ON"),
        ("${matrix.m}", "the matrix has no axis 'm'; known: n"),
    ],
)
def test_variables_that_stand_for_nothing_are_reported(text, reported):
    value, problems = filled(text, {"A": "a", "ON": "on"}, {"n": 1})
    assert value is None
    assert problems[0].startswith(f"f.yaml:7: path: {reported}")


def test_a_value_in_quotes_is_text(write):
    text = 'model: m\ntarget: "${N}"\nmethods: {f: {partitioners: []}}\nvalidate:\n  inputs: '
    assert data(write({"N": "5"}, p=text + "${N}\n"), "p")["target"] == "5"
    found = write({"N": "5"}, p=text + '"${N}"\n')
    assert problems(found, "p") == [
        "p.yaml:5: validate.inputs: is '5', must be a whole number; "
        "a quoted value is a string; write it on a line of its own, without quotes"
    ]


def test_only_variables_that_count_are_asked_for(write, tmp_path):
    files = {
        "_base": "target: ${UNUSED}\nmodel: ${MODEL}\n",
        "p": "extends: _base\ntarget: t\nmethods: {f: {partitioners: []}}\n",
    }
    assert data(write({"MODEL": "m"}, **files), "p")["model"] == "m"
    composition = Folder(tmp_path, environment({})).compose(tmp_path / "p.yaml")
    assert composition.variables == ("MODEL",)
    assert problems(write({}, **files), "p") == [
        "_base.yaml:2: model: the variable MODEL is not set, and has no default; "
        "set it, or write ${MODEL:-default}"
    ]


def test_a_base_can_be_chosen_by_a_variable(write):
    files = {
        "_a": "target: a\n",
        "_b": "target: b\n",
        "p": "extends: _${SIDE:-a}\nmodel: m\nmethods: {f: {partitioners: []}}\n",
    }
    assert data(write({}, **files), "p")["target"] == "a"
    assert data(write({"SIDE": "b"}, **files), "p")["target"] == "b"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.booleans())
def test_any_text_can_be_escaped(text, unquoted):
    variables = Variables(environment({}))
    node = variables.fill(Node(text.replace("$", "$$"), "f", "x", 1, plain=unquoted))
    assert node.value == text and not variables.problems


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20))
def test_a_variable_is_read_as_yaml_would_read_it(text):
    value, reported = filled("${X}", {"X": text})
    try:
        assert value == read_scalar(text) and not reported
    except ValueError:
        assert value is None and len(reported) == 1


# matrix

METHODS = "model: m\nmethods: {f: {partitioners: [xnnpack]}}\n"
MATRIX = """\
model: m
target: ${matrix.os}-${matrix.bits}
methods: {f: {partitioners: [xnnpack]}}
matrix:
  os: [android, ios]
  bits: [32, 64]
  precision:
    fp32: {}
    int8:
      defaults: {quantize: {quantizer: xnnpack}}
      validate: {atol: 0.5}
"""


def test_a_matrix_makes_a_package_of_every_combination(write):
    found = write(asr=MATRIX)
    names = [
        f"asr-{os}-{bits}-{precision}"
        for os, bits, precision in itertools.product(["android", "ios"], [32, 64], ["fp32", "int8"])
    ]
    assert list(found.configs) == names
    assert data(found, "asr-ios-64-fp32") == {
        "model": "m",
        "target": "ios-64",
        "methods": {"f": {"partitioners": ["xnnpack"]}},
    }
    assert data(found, "asr-android-32-int8") == {
        "model": "m",
        "target": "android-32",
        "methods": {"f": {"partitioners": ["xnnpack"], "quantize": {"quantizer": "xnnpack"}}},
        "validate": {"atol": 0.5},
    }


def test_packages_of_a_matrix_can_be_named(write):
    text = METHODS + "matrix: {os: [a, b]}\npackage: x.${matrix.os}.${V:-1}\n"
    assert list(write(asr=text).configs) == ["x.a.1", "x.b.1"]


def test_a_matrix_can_stand_in_a_base_and_be_changed(write):
    found = write(
        _base=MATRIX,
        p="extends: _base\nmatrix: {bits: null, os: [linux]}\ntarget: ${matrix.os}\n",
        q="extends: _base\nmatrix:\ntarget: q\n",
    )
    assert list(found.configs) == ["p-linux-fp32", "p-linux-int8", "q"]


MATRICES = [
    ("[a]", "matrix: is a list, must be a mapping of axes; write `axis: [value, value]`"),
    ("{}", "matrix: has no axis; write"),
    ("{a: }", "matrix.a: is empty, must be a list of values; or a mapping of names to parts of a"),
    ("{a: []}", "matrix.a: is an empty list, must be a list of values"),
    ("{a: x}", "matrix.a: is 'x', must be a list of values"),
    ("{a: [[x]]}", "matrix.a[0]: is a list, must be a string, a number, true or false"),
    ("{a: [x, ~]}", "matrix.a[1]: is empty, must be a string, a number, true or false"),
    ("{a: [x, y, x]}", "matrix.a[2]: names 'x' twice; keep one"),
    ("{a: ['${X}']}", "matrix.a[0]: the variable X is not set, and has no default"),
    ("{a b: [x]}", "matrix.'a b': cannot name an axis: 'a b' must be letters, digits"),
    ("{a: {x: }}", "matrix.a.x: is empty, must be a mapping, a part of a config; `{}` changes"),
    ("{a: {x: {extends: _b}}}", "matrix.a.x.extends: 'extends' is not allowed in a part of a conf"),
    ("{a: {x: {modl: z}}}", "matrix.a.x: unknown key 'modl'; did you mean 'model'? known: "),
    ("{a: [x, y]}", "matrix.a: is an axis that the config doesn't use, so its packages would"),
    ("{a: [x/y]}", "matrix: cannot name a package: 'p-x/y' must be letters"),
    ("{a: [" + ", ".join(map(str, range(1001))) + "]}", "matrix: makes 1001 packages, more than"),
]


@pytest.mark.parametrize(
    ("matrix", "reported"), MATRICES, ids=[reported[:50] for _, reported in MATRICES]
)
def test_what_is_wrong_with_a_matrix(write, matrix, reported):
    found = write(p=f"{METHODS}matrix: {matrix}\n")
    assert not found.configs
    ((_, listed),) = found.problems.items()
    (problem,) = [str(problem).partition("/")[2] for problem in listed]
    assert problem.startswith(f"p.yaml:3: {reported}"), problem


def test_names_must_tell_packages_apart(write):
    matrix = "matrix:\n  a: [x, y]\n  b: [1, 2]\n"
    (problem, *_) = problems(write(p=METHODS + matrix + "package: p-${matrix.a}\n"), "p")
    assert problem == (
        "p.yaml:6: package: 'p-x' is the name of two packages: a x, b 1; and a x, b 2; "
        "name every axis in it"
    )
    (problem, *_) = problems(write(p=METHODS + "matrix:\n  a: [x, X]\n"), "p")
    assert problem == (
        "p.yaml:3: matrix: 'p-X' differs from the name of another package only in case; "
        "use distinct names: on macOS and Windows they are the same folder"
    )
    (problem,) = problems(write(p=METHODS + "package: x\n"), "p")
    assert problem == (
        "p.yaml:3: package: names the packages of a matrix, but the config has no matrix; name "
        "the file"
    )


def test_two_files_that_make_one_package_are_both_named(write, tmp_path):
    matrix = "matrix: {os: [x, y]}\ntarget: ${matrix.os}\n"
    found = write(a=METHODS + matrix, **{"a-x": METHODS})
    assert list(found.configs) == ["a-y"]
    (problem,) = found.problems["a-x"]
    assert {problem.file, problem.what} == {
        f"{tmp_path.name}/a.yaml",
        f"makes the package 'a-x', as {tmp_path.name}/a-x.yaml does",
    }


def test_an_axis_of_the_matrix_is_suggested(write):
    found = write(p="matrix: {pc: [a, b]}\nmodel: m\ntarget: ${pc}\nmethods: {f: {}}\n")
    [line] = [line for line in problems(found, "p-a") if "target" in line]
    assert line.endswith("; an axis of the matrix is written ${matrix.pc}")


def test_a_variable_of_the_matrix_needs_one(write):
    (problem,) = problems(write(p=METHODS + "target: ${matrix.os}\n"), "p")
    assert problem == "p.yaml:3: target: `${matrix.os}`: this config has no matrix"


def test_a_mistake_of_one_combination_spoils_no_other(write):
    found = write(
        p=METHODS + "matrix:\n  a:\n    x: {}\n    y:\n      target: ${UNSET}\n      model: 3\n"
    )
    assert list(found.configs) == ["p-x"]
    assert problems(found, "p-y") == [
        "p.yaml:7: matrix.a.y.target: the variable UNSET is not set, and has no default; "
        "set it, or write ${UNSET:-default}",
        "p.yaml:8: matrix.a.y.model: is 3, must be a string; quote it",
    ]


def test_a_folder_that_cannot_be_read_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match="file: cannot be read"):
        Folder(tmp_path / "file", environment({}))


# Properties of merging

KEYS = st.sampled_from(["a", "b", "c"])
TREES = st.recursive(
    st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(KEYS, TREES, max_size=3)
PATCHES = st.dictionaries(
    KEYS,
    st.recursive(
        st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
        lambda inner: st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=3,
)


def nodes(value, file="f"):
    return load_nodes(yaml.safe_dump(value).encode(), file)


def settled(node):
    """Return the data without removed or empty parts."""
    if isinstance(node.value, dict):
        return {k: settled(v) for k, v in node.value.items() if v.value is not None}
    return plain(node)


def merge_patch(target, patch):
    """RFC 7396, exactly as specified."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def stacked(documents):
    first, *others = (nodes(each, str(number)) for number, each in enumerate(documents))
    for each in others:
        first = merge(first, each)
    return first


@given(st.lists(PATCHES, min_size=1, max_size=4))
def test_merging_is_that_of_json_merge_patch(documents):
    expected = {}
    for each in documents:
        expected = merge_patch(expected, each)
    assert settled(stacked(documents)) == expected


# In a config a key either always has a mapping or never does, whichever file sets it.
SHAPED = st.deferred(
    lambda: (
        st.dictionaries(st.sampled_from("ab"), SHAPED, max_size=2)
        | st.dictionaries(st.sampled_from("cd"), st.integers(0, 3), max_size=2)
    )
)


@given(SHAPED, SHAPED, SHAPED)
def test_merging_is_associative_where_nothing_is_taken_away(one, two, three):
    a, b, c = nodes(one), nodes(two), nodes(three)
    assert plain(merge(merge(a, b), c)) == plain(merge(a, merge(b, c)))
    assert plain(merge(a, a)) == one
    assert plain(merge(a, nodes({}))) == one


@given(st.lists(MAPPINGS.filter(bool), min_size=3, max_size=3))
def test_how_a_chain_of_bases_is_spelled_means_nothing(documents):
    spellings = [
        {"_a": [], "_b": ["_a"], "p": ["_b"]},
        {"_a": [], "_b": [], "p": ["_a", "_b"]},
        {"_a": [], "_b": ["_a"], "p": ["_a", "_b"]},
        {"_a": [], "_b": ["_a"], "p": ["_b", "_a"]},
        {"_a": [], "_b": ["_a"], "p": ["_a", "_b", "_a", "_b"]},
    ]
    found = []
    for spelling in spellings:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for (stem, bases), each in zip(spelling.items(), documents, strict=True):
                document = {**({"extends": bases} if bases else {}), **each}
                (folder / f"{stem}.yaml").write_text(yaml.safe_dump(document))
            composition = Folder(folder, environment({})).compose(folder / "p.yaml")
            assert sorted(composition.reads) == sorted(
                {"p.yaml"}
                | {f"{base}{suffix}" for base in ("_a", "_b") for suffix in (".yaml", ".yml")}
            )
            found.append(composition.documents["p"].data)
    assert all(each == found[0] for each in found)
    assert found[0] == plain(stacked(documents))


def at(value, path):
    """Return the value at a path such as `a.b[1]`."""
    for key in re.findall(r"[^.\[\]]+", path):
        value = value[int(key) if isinstance(value, list) else key]
    return value


def leaves(node, path=""):
    if isinstance(node.value, dict) and node.value:
        for key, inner in node.value.items():
            yield from leaves(inner, f"{path}.{key}".lstrip("."))
    else:
        yield path, node


@given(st.lists(MAPPINGS, min_size=1, max_size=4))
def test_each_value_is_of_the_last_document_that_wrote_it(documents):
    for path, node in leaves(stacked(documents)):
        if not path:
            continue
        file = int(node.file)
        assert node.path == path
        assert at(documents[file], path) == plain(node)
        line = yaml.safe_dump(documents[file]).splitlines()[node.line - 1]
        assert line.strip().startswith(f"{path.rpartition('.')[2]}:")
        for later in documents[file + 1 :]:
            with pytest.raises((KeyError, TypeError)):
                written = at(later, path)
                if written == {}:  # adds nothing to a mapping
                    raise KeyError


# The resolved view


@given(DOCUMENTS)
@settings(max_examples=50)
def test_the_resolved_view_is_a_config_that_resolves_to_the_same(document):
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "p.yaml"
        text = yaml.safe_dump(document, default_style='"').replace("$", "$$")
        path.write_text(re.sub(r'!!\w+ "([^"]*)"', r"\1", text), encoding="utf-8")
        found = read_configs(Path(name), {})
        if found.problems:  # numbers and texts that YAML 1.1 spells differently
            return
        view = "\n".join(resolved_view(found.configs["p"], found.documents["p"]))
        path.write_text(view, encoding="utf-8")
        again = read_configs(Path(name), {})
    assert not again.problems, (view, again.problems)
    assert again.configs["p"].resolved() == found.configs["p"].resolved()


def test_the_resolved_view_tells_where_each_value_was_written(write, tmp_path):
    found = write(
        {"ARCH": "arm64"},
        _base=BASE + "constant_methods: {get_text: 'on', get_list: [1, true, a b]}\n",
        p="extends: _base\ntarget: android-${ARCH}\nmethods:\n  f: {}\n  g:\n    quantize:\n",
    )
    lines = list(resolved_view(found.configs["p"], found.documents["p"]))
    reported = [re.split(r"\s+# (?=default|test_)", line.strip()) for line in lines]
    rows = dict(each for each in reported if len(each) == 2)
    folder = tmp_path.name
    assert lines[0] == f"# p: {folder}/p.yaml"
    assert rows["target: android-arm64"] == f"{folder}/p.yaml:2, android-${{ARCH}}"
    assert rows["per_channel: false"] == f"{folder}/_base.yaml:5, defaults"
    assert rows["# weight_qmax: 127"] == "default"
    assert rows["# quantize: none"] == "default"
    assert rows["atol: 0.5"] == f"{folder}/_base.yaml:7"
    assert rows["max_size: 1000000"] == f"{folder}/_base.yaml:8"
    assert rows["get_text: 'on'"] == f"{folder}/_base.yaml:9"
    assert rows["get_list: [1, true, a b]"] == f"{folder}/_base.yaml:9"
    assert parse_document("p", found.documents["p"]) == found.configs["p"]


MIXED = """\
model: m
methods:
  f: {recipe: xnnpack_pt2e_int8_dynamic_per_channel}
  g:
    partitioners: [xnnpack]
    quantize:
      quantizer: xnnpack
      per_channel: false
      modules: {a.b: {dynamic: true}, c: none}
"""


def test_the_resolved_view_knows_recipes_and_overrides(write):
    found = write(p=MIXED)
    view = "\n".join(resolved_view(found.configs["p"], found.documents["p"]))
    assert write(p=view).configs["p"] == found.configs["p"]
    lines = [" ".join(re.split(r" # test_\w+/", line)[0].split()) for line in view.splitlines()]
    assert "recipe: xnnpack_pt2e_int8_dynamic_per_channel" in lines
    assert "# partitioners: [xnnpack] # default" in lines or any(
        line.startswith("# partitioners: [{xnnpack: ") for line in lines
    )
    override = lines[lines.index("a.b:") :]
    assert "dynamic: true" in override
    assert "# per_channel: false # as for the method" in override
    assert "c: none" in override


# Model fields that configs spell differently.
NOT_SPELLED = ("package", "name", "options", "reference", "factory", "omitted")


def test_the_resolved_view_knows_every_key(write):
    text = (
        "model: m\nmethods:\n  f:\n    partitioners:\n"
        "      - xnnpack: {modules: [a.b, c]}\n      - xnnpack\n"
        "    quantize: {quantizer: xnnpack}\n    modules: [d]\n"
        "    edge: {passes: [a.b:C, {a:d: {x: [1, {y: ~, z: 'on'}], '$ 1': $$}}]}\n"
        "emit: {external_files: {w: ['a.*', $$]}, passes: [a:e]}\n"
        "validate: {gates: {max_size: 1}}\n"
    )
    found = write(p=text)
    view = "\n".join(resolved_view(found.configs["p"], found.documents["p"]))
    assert write(p=view).configs["p"] == found.configs["p"]

    def keys(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from [key, *keys(inner)]
        for inner in value if isinstance(value, list) else ():
            yield from keys(inner)

    for key in set(keys(found.configs["p"].resolved())):
        spelled = re.search(rf'(^|[\s{{"])({re.escape(key)})"?:', view, re.MULTILINE)
        assert spelled or key in NOT_SPELLED, key


def test_the_example_of_the_documentation_is_true(write):
    pages = [
        (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
        for page in ("guides/configs.md", "concepts/validation.md", "reference/gates.md")
    ]
    text = pages[0]
    examples, (random, inputs), (gates,) = (
        re.findall(r"```yaml\n(.*?)```", each, re.DOTALL) for each in pages
    )
    whole, nothing, base, config, matrix, editor, *rest = examples
    libraries, edge, made, parts, export, weights = rest
    view = re.search(r"```\n(# asr-small-int8.*?)```", text, re.DOTALL)[1].splitlines()
    other = f"extends: _phone\n{METHODS}{matrix}"
    embed = "model: m\nmethods: {embed: {partitioners: []}}\n"
    three = "model: m\nmethods: {encode: {partitioners: []}, prefill: {partitioners: []}, "
    three += "decode: {partitioners: []}}\n"
    found = write(
        whole=whole,
        nothing=f"model: m\n{nothing}",
        _phone=base,
        asr=config,
        other=other,
        editor=f"{editor}methods: {{decode: {{partitioners: []}}}}\n",
        libraries=f"{libraries}methods: {{decode: {{partitioners: []}}}}\n",
        edge=f"model: m\n{edge}",
        made=f"model: m\nmethods:\n  decode:\n    partitioners: []\n    edge:\n{made}",
        parts=f"model: m\n{parts}",
        export=export,
        **{f"weights{n}": f"{embed}{line}" for n, line in enumerate(weights.splitlines())},
        gates=embed + gates,
        inputs=three + inputs,
        random=f"model: m\nmethods: {{sample: {{partitioners: []}}}}\n{random}",
    )
    assert not found.problems
    package = "asr-small-int8"
    lines = "\n".join(resolved_view(found.configs[package], found.documents[package]))
    lines = re.sub(r"# test_\w+/", "# partition_configs/", lines.replace(": test_", ": # test_"))
    reported = {" ".join(line.split()) for line in lines.splitlines()}
    for line in view:
        shown = " ".join(line.replace("int8: partition", "int8: # partition").split())
        assert line == "..." or shown in reported
    assert sorted(found.configs) == [
        *["android.asr.fp32", "android.asr.int8"],
        *(f"asr-{size}-{p}" for size in ["large", "small"] for p in ["fp32", "int8"]),
        *["edge", "editor", "export-fp16", "export-fp32", "gates", "inputs"],
        *["ios.asr.fp32", "ios.asr.int8", "libraries", "linux.asr.fp32", "linux.asr.int8"],
        *["made", "nothing", "parts", "random", "weights0", "weights1", "weights2", "whole"],
    ]


# What the plan remembers

METHOD = "methods: {f: {partitioners: []}}\n"
CONTENTS = st.sampled_from(
    [
        None,
        "",
        "model: [",
        "model: a\n",
        f"model: b\n{METHOD}",
        f"model: m${{X:-0}}\n{METHOD}",
        f"model: m${{X}}\n{METHOD}",
        f"extends: _a\nmodel: c\n{METHOD}",
        f"extends: _b\n{METHOD}",
        f"extends: [_a, _b]\n{METHOD}",
        f"extends: _${{X:-a}}\n{METHOD}",
        f"extends: p\n{METHOD}",
        f"model: d\n{METHOD}matrix: {{x: [1, '${{X:-2}}']}}\n",
        "matrix: {y: {q: {}, r: {model: e}}}\npackage: p-${matrix.y}\n",
        "matrix:\n",
    ]
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["_a.yaml", "_b.yaml", "_b.yml", "p.yaml", "q.yaml"]), CONTENTS)
    | st.tuples(st.just("X"), st.sampled_from([None, "", "a", "b", "q"])),
    min_size=1,
    max_size=12,
)


def known(plan):
    """Return the packages with their models, or None for a package with mistakes."""
    return {package: plan.model(package) for package in plan.packages}


@given(STEPS)
@settings(max_examples=60)
def test_what_the_plan_remembers_is_what_it_would_find(steps):
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch("pipeline.store.file_digests.RACY_NS", -1),
        mock.patch.dict(os.environ),
    ):
        root = Path(name)
        (root / "partition_configs").mkdir()
        os.environ.pop("X", None)
        listed = Environment(["X"])
        for number, (what, content) in enumerate(steps):
            path = root / "partition_configs" / what
            if what == "X":
                os.environ.update({} if content is None else {"X": content})
                os.environ.pop("X") if content is None and "X" in os.environ else None
            elif content is None:
                path.unlink(missing_ok=True)
            else:  # a different size each time, whatever the clock says
                path.write_text(content + "#" * (number + 1))
            workspace = Workspace(root, Store(root / "store"), 1, environment=listed)
            plan = Plan(workspace)
            found = known(plan)
            plan.remember()
            memory = root / "build" / ".files.json"
            kept = memory.read_bytes() if memory.exists() else b""
            memory.unlink(missing_ok=True)
            assert found == known(Plan(replace(workspace)))
            memory.parent.mkdir(exist_ok=True)
            memory.write_bytes(kept)
