"""Loaded packages: the methods of the source, called from Python."""

import copy
import inspect
import json
import math
import pickle
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import reduce
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import data, integers, sampled_from
from torch import nn
from torch.export import Dim

import pipeline
from pipeline import load_package
from pipeline.features.loading.method_spec import ArgumentError, MethodSpec
from pipeline.program.recorded_signature import record_signature
from pipeline.program.signature import find_changed_inputs
from pipeline.store.digest import hash_bytes
from pipeline.store.errors import DeviceError, PipelineError
from pipeline.store.files import MANIFEST
from pipeline.store.names import METADATA
from tests.devices.test_bindings import (
    CONSTANTS,
    exported,
    lowered,
    package_file,
    programs,
    split_package,
    write,
)
from tests.support.bench import REPOSITORY
from tests.support.signatures import make_method_spec
from tests.validate.test_package import InPlace


class Nested(nn.Module):
    """Nested arguments and outputs, keyword-only arguments, values that the export fixes."""

    def forward(self, x, states, *, scale, flag: bool = True, steps: int = 3):
        y = x * scale + states[0]["key"] if flag else x
        return ((y + steps,), {"sum": y.sum(0), "both": torch.cat([x, states[1]])})


def nested():
    rows, more = Dim("rows", min=1, max=8), Dim("more", min=1, max=9)
    states = [{"key": torch.ones(2)}, torch.zeros(3, 2)]
    return exported(
        Nested(),
        torch.ones(4, 2),
        states,
        scale=torch.tensor(2.0),
        flag=True,
        steps=5,
        shapes={
            "x": {0: rows},
            "states": [{"key": None}, {0: more}],
            "scale": None,
            "flag": None,
            "steps": None,
        },
    )


class Single(nn.Module):
    def forward(self, x):
        return (x + 1,)


def place(folder, methods, constants=None, name="model.pte", **config):
    """Write a package and its manifest to a folder, as linking leaves them."""
    folder.mkdir(parents=True, exist_ok=True)
    signatures = {n: record_signature(program) for n, program in methods.items()}
    manager = lowered(methods, constants=constants, **config)
    changes = {n: find_changed_inputs(manager.exported_program(n)) for n in methods}
    content = bytes(manager.buffer)
    manifest = {
        "files": {name: {"digest": hash_bytes(content), "size": len(content)}},
        "methods": {
            n: {"signature": {**signature, "changes": changes[n]}}
            for n, signature in signatures.items()
        },
    }
    (folder / name).write_bytes(content)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder / name


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    methods = {"nested": nested(), "single": exported(Single(), torch.ones(3)), **programs()}
    folder = tmp_path_factory.mktemp("placed")
    return place(folder, methods, {**CONSTANTS, "get_pair": [1, 2]})


@pytest.fixture(params=["executorch", "interpreter"])
def package(request, placed):
    return load_package(placed, device=request.param)


X = torch.tensor([1.0, 2.0, 3.0])
STATES = [{"key": torch.tensor([1.0, 2.0])}, torch.zeros(2, 2)]


def test_methods_are_there_by_name(package):
    assert list(package) == sorted([*programs(), "nested", "single", *CONSTANTS, "get_pair"])
    assert len(package) == len(package.methods) and "nested" in dir(package)
    assert package["nested"] is package.nested and package.nested.has_names
    with pytest.raises(PipelineError, match=r"model.pte: has no method 'decode'; it has again, "):
        package["decode"]
    with pytest.raises(AttributeError, match=r"model\.pte: has no method 'decode'"):
        _ = package.decode


def test_signatures_are_those_of_the_source(package):
    assert str(inspect.signature(package.encode)) == "(x)"
    assert str(inspect.signature(package.embed)) == "(tokens, *, scale)"
    shown = "(x, states, *, scale, flag=True, steps=5)"
    assert str(inspect.signature(package.nested)) == shown
    assert f"  nested{shown}" in repr(package)


def test_arguments_and_outputs_are_nested_as_in_the_source(package):
    x = torch.ones(3, 2)
    (first,), rest = package.nested(x, STATES, scale=torch.tensor(3.0))
    expected = Nested()(x, STATES, scale=torch.tensor(3.0), steps=5)
    torch.testing.assert_close(first, expected[0][0])
    assert list(rest) == ["sum", "both"]
    torch.testing.assert_close(rest["both"], expected[1]["both"])
    same = package.nested(states=STATES, x=x, steps=5, scale=torch.tensor(3.0))
    assert torch.equal(same[0][0], first)


def test_a_tuple_of_one_stays_one_and_a_tensor_a_tensor(package):
    (y,) = package.single(X)
    assert type(package.single(X)) is tuple and torch.equal(y, X + 1)
    assert isinstance(package.encode(torch.ones(3, 4)), torch.Tensor)
    assert package.embed(torch.tensor([1, 2, 3]), scale=torch.tensor(1.0)).keys() == {
        "rows",
        "tokens",
    }
    same, more, nothing = getattr(package, "pass")(X)
    assert torch.equal(same, X) and torch.equal(more, X + 2) and nothing is None


def test_constant_methods(package):
    assert {name: package[name]() for name in ("get_length", "get_rate")} == {
        "get_length": 128,
        "get_rate": 0.5,
    }
    assert package.get_pair() == (1, 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: p.encode(), "missing a required argument: 'x'; it takes (x)"),
        (lambda p: p.encode(X, X), "too many positional arguments; it takes (x)"),
        (lambda p: p.embed(torch.tensor([1, 2, 3]), torch.tensor(1.0)), "too many positional"),
        (lambda p: p.encode(torch.ones(3, 4).double()), "'x': dtype float64, must be float32"),
        (lambda p: p.encode(torch.ones(4)), "argument 'x': rank 1, must be 2"),
        (lambda p: p.encode(torch.ones(3, 5)), "'x': size 5 at dimension 1, must be 4"),
        (
            lambda p: p.encode(torch.ones(11, 4)),
            "size 11 at dimension 0, must be at least 2",
        ),
        (lambda p: p.encode([1.0]), "argument 'x': a list of 1, must be a tensor"),
        (lambda p: p["pass"](X, 3), "'n': 3, must be 2, the value that the program was exported"),
        (
            lambda p: p.nested(torch.ones(3, 2), (1, 2), scale=torch.tensor(1.0)),
            "argument 'states[0]['key']': a tuple of 2, must be a list of 2",
        ),
    ],
)
def test_what_does_not_fit_names_method_and_argument(package, call, words):
    with pytest.raises(ArgumentError) as caught:
        call(package)
    assert str(caught.value).startswith("model.pte: method '") and words in str(caught.value)
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, PipelineError)


def test_all_mistakes_are_reported_together(package):
    with pytest.raises(ArgumentError) as caught:
        package.nested(X, [{"key": torch.ones(3)}, X], scale=X, flag=False)
    lines = str(caught.value).splitlines()
    assert all(line.startswith("model.pte: method 'nested': argument '") for line in lines)
    assert len(lines) == 5


def test_outputs_are_checked(package):
    """Catches a device that computes something else than the package declares."""
    package._session.run = lambda method, inputs: [torch.ones(4, dtype=torch.int32)]
    with pytest.raises(PipelineError, match=r"'single': output\[0\]: dtype int32, must be float32"):
        package.single(X)
    package._session.run = lambda method, inputs: [torch.ones(2)]
    with pytest.raises(PipelineError, match=r"output\[0\]: size 2 at dimension 0, must be 3"):
        package.single(X)
    package._session.run = lambda method, inputs: []
    with pytest.raises(PipelineError, match="returns 0 outputs, must return 1"):
        package.single(X)


def test_dynamic_outputs_are_checked_against_the_inputs(package):
    package._session.run = lambda method, inputs: [torch.ones(6, 3)]
    assert package.encode(torch.ones(6, 4)).shape == (6, 3)
    with pytest.raises(PipelineError, match="output: size 6 at dimension 0, must be 5"):
        package.encode(torch.ones(5, 4))


def test_state_lasts_until_it_is_reset(package):
    assert [package.count(X)[0].item() for _ in range(2)] == [2.0, 4.0]
    package.reset()
    assert package.count(X)[0].item() == 2.0


@pytest.mark.parametrize("device", ["executorch", "interpreter"])
def test_inputs_that_the_source_changes_are_changed(tmp_path, device):
    program = exported(InPlace(), torch.ones(3), torch.ones(3))
    package = load_package(place(tmp_path, {"run": program}), device=device)
    x, y = torch.ones(3), torch.ones(3)
    z = package.run(x, y)
    assert (x.tolist(), y.tolist(), z.tolist()) == ([2] * 3, [2] * 3, [4] * 3)


@pytest.mark.parametrize("restored", [lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy])
def test_copies_need_no_file_and_begin_anew(tmp_path, placed, restored):
    folder = tmp_path / "moved"
    shutil.copytree(placed.parent, folder)
    package = load_package(folder / placed.name)
    package.count(X)
    shutil.rmtree(folder)
    other = restored(package)
    assert repr(other) == repr(package)
    assert other.count(X)[0].item() == 2.0
    assert package.count(X)[0].item() == 4.0
    method = restored(package.nested)
    assert method.package is not package
    torch.testing.assert_close(
        method(torch.ones(3, 2), STATES, scale=torch.tensor(3.0)),
        package.nested(torch.ones(3, 2), STATES, scale=torch.tensor(3.0)),
    )


def test_a_copy_keeps_its_device(placed):
    package = load_package(placed, device="interpreter")
    assert copy.deepcopy(package).count.device == "interpreter"
    assert load_package(placed).count.device == "executorch"


@pytest.mark.slow
def test_a_pickle_is_read_in_another_process(placed):
    data = pickle.dumps(load_package(placed))
    code = (
        "import pickle, sys, torch; p = pickle.load(sys.stdin.buffer);"
        "print(p.count(torch.ones(3)).tolist(), 'executorch.exir' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=data, capture_output=True, cwd=REPOSITORY, timeout=120
    )
    assert done.stdout.decode().strip() == "[2.0, 2.0, 2.0] False", done.stderr.decode()


def test_without_a_manifest_inputs_go_by_position():
    package = load_package(package_file(), trust=True)
    assert not package.embed.has_names
    rows, tokens = package.embed(torch.tensor([1, 2, 6]), torch.tensor(2.0))
    assert rows.shape == (3, 4) and tokens.tolist() == [1, 2, 6]
    (y,) = package.encode(torch.ones(3, 4))
    assert y.shape == (3, 3)
    assert package.get_length() == 128
    with pytest.raises(ArgumentError, match=r"argument 'args\[0\]': dtype float64"):
        package.encode(torch.ones(3, 4).double())
    with pytest.raises(ArgumentError, match="at most 10"):
        package.encode(torch.ones(11, 4))


def test_a_manifest_of_another_package_is_refused(tmp_path, placed):
    shutil.copy(placed.parent / MANIFEST, tmp_path)
    shutil.copy(package_file(), tmp_path / "model.pte")
    with pytest.raises(
        PipelineError,
        match=r"model.pte: manifest.json next to it belongs to "
        "another file",
    ):
        load_package(tmp_path / "model.pte")
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(PipelineError, match=r"the manifest.json next to it can.t be read"):
        load_package(tmp_path / "model.pte")


@pytest.fixture
def split(tmp_path):
    """Write a package with weights in `first.ptd` and `second.ptd`, and its manifest."""
    pte, ptds, _ = split_package()
    files = [Path(shutil.copy(each, tmp_path)) for each in (pte, *ptds)]
    facts = {
        f.name: {"digest": hash_bytes(f.read_bytes()), "size": f.stat().st_size} for f in files
    }
    (tmp_path / MANIFEST).write_text(json.dumps({"files": facts, "methods": {}}))
    return files


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


NEEDED = "it needs the first.ptd, second.ptd that it was built with"


@pytest.mark.parametrize(
    ("change", "ptds", "line"),
    [
        (Path.unlink, [], "needs first.ptd, which is not next to it; put it there, or pass it as "),
        (Path.unlink, ["first.ptd"], "first.ptd: cannot be read: No such file or directory"),
        (flip, [], "first.ptd is damaged, or from another build: digest "),
        (
            lambda p: p.write_bytes(b""),
            [],
            "first.ptd is damaged, or from another build: 0 bytes, ",
        ),
        (lambda p: None, ["first.ptd"], "needs second.ptd too; pass all its .ptd files"),
        (lambda p: None, ["split.pte"], f"split.pte is not a file of this package; {NEEDED}"),
    ],
)
def test_external_weights_that_do_not_fit_are_told_in_a_line(split, change, ptds, line):
    pte, first, _ = split
    assert list(load_package(pte)) == ["forward"]
    change(first)
    with pytest.raises(PipelineError) as caught:
        load_package(pte, ptds=[pte.parent / each for each in ptds])
    (said,) = str(caught.value).splitlines()
    assert said.startswith(f"split.pte: {line}")


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("args"),
        lambda s: s["args"][0][1].update(dtype="load"),
        lambda s: s["args"][0][1].update(sizes=[{"size": ["eval", "d0"], "min": 0, "max": 1}]),
        lambda s: s["args"][0][1].update(sizes=[{"size": "os", "min": 0, "max": 1}]),
    ],
)
def test_a_signature_that_cannot_be_read_is_an_error(tmp_path, placed, change):
    shutil.copytree(placed.parent, tmp_path, dirs_exist_ok=True)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    change(manifest["methods"]["encode"]["signature"])
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(PipelineError, match=r"manifest.json: method 'encode': a signature that"):
        load_package(tmp_path / "model.pte")


_VALUES = [
    None,
    True,
    -1,
    2**70,
    1.5,
    math.inf,
    "",
    "os",
    "0x1p99999",
    [],
    {},
    ["Mul"],
    ["dict", 1],
]


@settings(max_examples=75, deadline=None)
@given(data())
def test_a_signature_of_a_stranger_is_read_or_told(signatures, data):
    """The signature may come with the file, as metadata."""
    written = {"s": copy.deepcopy(data.draw(sampled_from(signatures)))}
    node, key = written, "s"
    while isinstance(node[key], dict | list) and node[key] and data.draw(integers(0, 6)):
        node = node[key]
        key = data.draw(sampled_from([*(node if isinstance(node, dict) else range(len(node)))]))
    deep = reduce(lambda inner, _: ["list", inner], range(2000), [])
    node[key] = data.draw(sampled_from([*_VALUES, deep]))
    with suppress(PipelineError):
        assert MethodSpec.from_json(written["s"]).signature


@pytest.fixture(scope="module")
def signatures(placed):
    manifest = json.loads((placed.parent / MANIFEST).read_text())
    return [each["signature"] for each in manifest["methods"].values()]


@pytest.mark.parametrize("text", ["[" * 2000, '{"methods": 3}'])
def test_a_method_of_that_name_that_says_nothing_of_ours(tmp_path, text):
    methods = {"single": exported(Single(), torch.ones(3))}
    path = place(tmp_path, methods, {METADATA: text})
    (tmp_path / MANIFEST).unlink()
    package = load_package(path, trust=True)
    assert not package.single.has_names and package.get_metadata() == text
    assert torch.equal(package.single(X)[0], X + 1)


def test_files_and_devices_that_are_not_there(tmp_path, placed):
    with pytest.raises(PipelineError, match=r"none.pte: cannot be read: No such file"):
        load_package(tmp_path / "none.pte")
    with pytest.raises(
        PipelineError, match=r"no device 'gpu'; known: board:<name>, executorch, interpreter"
    ):
        load_package(placed, device="gpu")
    with pytest.raises(DeviceError, match="corrupt file"):
        load_package(write("broken.pte", b"no package" * 100), trust=True)


def test_signatures_survive_json_and_do_not_depend_on_the_export():
    for program in [nested(), *programs().values()]:
        record = record_signature(program)
        assert MethodSpec.from_json(json.loads(json.dumps(record))) == MethodSpec.from_json(record)
    once, again = (json.dumps(record_signature(nested())) for _ in range(2))
    assert once == again


def test_fixed_values_are_defaults_where_python_allows_it():
    class Fixed(nn.Module):
        def forward(self, n: int, x, scale: float = 2.0, nothing=None):
            return x * scale + n

    spec = make_method_spec(exported(Fixed(), 3, torch.ones(2), float("inf"), None))
    assert str(spec.signature) == "(n, x, scale=inf, nothing=None)"
    several = type("Several", (nn.Module,), {"forward": lambda self, *xs: xs[0] + xs[1]})()
    assert str(make_method_spec(exported(several, X, X)).signature) == "(xs_0, xs_1)"


def test_the_least_size_of_a_second_export_counts_for_nothing_up_to_two():
    for least, reexported, expected in ((2, False, 2), (2, True, 0), (3, True, 3)):
        shapes = ({0: Dim("rows", min=least, max=8)},)
        program = exported(Single(), torch.ones(4), shapes=shapes)
        spec = make_method_spec(program, reexported=reexported)
        assert spec.args[0][1].value.sizes[0].least == expected


def test_states_are_those_of_one_package(placed):
    first, second = load_package(placed), load_package(placed)
    assert first.count(X)[0].item() == second.count(X)[0].item() == 2.0


def test_the_api_is_imported_when_it_is_asked_for():
    code = "import sys, pipeline; assert 'torch' not in sys.modules; pipeline.load_package"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=60)
    assert set(pipeline.__all__) >= {"LoadedMethod", "LoadedPackage", "load_package"}
    with pytest.raises(AttributeError, match="has no attribute 'load_pack'"):
        _ = pipeline.load_pack


TAKEN = ("metadata", "methods", "name", "pass", "reset", "_run")


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """A package with method names that clash with its Python object, or that Python forbids."""
    program = exported(Single(), torch.ones(3))
    return place(tmp_path_factory.mktemp("taken"), dict.fromkeys(TAKEN, program))


@pytest.mark.parametrize("name", TAKEN)
def test_a_method_whose_name_is_taken_is_called_by_its_name_as_a_key(taken, name):
    package = load_package(taken)
    assert torch.equal(package[name](X)[0], X + 1)
    assert f'\n  ["{name}"](x)' in repr(package) and f"\n  {name}(" not in repr(package)
    assert package.name == "model.pte" and len(package.methods) == len(TAKEN)
    assert package.metadata == {}


def test_a_reset_that_may_be_a_method_is_refused(taken):
    message = r"model.pte: has a method 'reset': package\['reset'\]\(\.\.\.\) calls it, and copy"
    with pytest.raises(PipelineError, match=message):
        load_package(taken).reset()
