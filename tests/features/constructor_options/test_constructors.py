"""The catalogue against the description of the installed executorch's callables, and the
description against the installed source."""

import ast
import copy
import inspect
import re
import subprocess
import sys
from importlib.metadata import version
from typing import get_args

import pytest
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer

from pipeline.backends import BACKENDS
from pipeline.backends.families import find_files
from pipeline.features.constructor_options import constructors
from pipeline.features.cortex_m.entries import CortexMOptions
from pipeline.features.xnnpack.entries import XnnpackOptions, XnnpackQuantize
from pipeline.plan.config_checks import check_options
from pipeline.store.releases import RELEASES, installed_release
from tests.support.bench import REPOSITORY
from tests.support.configs import read_configs
from tools import describe_constructors as describe

# Every entry of this package that takes options; a plugin need not be described.
DESCRIBED = [
    backend
    for backend in BACKENDS.values()
    if not backend.plugin
    and backend.name not in installed_release().lacks
    and (backend.options.model_fields or backend.quantization)
]
ids = {"ids": lambda backend: backend.name}


def stages(backend):
    """Yield each stage's name, what takes its options, and their model."""
    models = {"lowering": backend.options}
    if backend.quantization is not None:
        models["quantization"] = backend.quantization.options
    for kind, model in models.items():
        stage = f"{backend.name}.{kind}"
        yield stage, constructors.constructors(stage), model


def test_the_table_is_of_stages_that_there_are():
    known = {stage for backend in BACKENDS.values() for stage, _, _ in stages(backend)}
    named = {stage for each in constructors.constructors() for stage in each.stages}
    others = constructors._table()["beyond"].items()
    assert named | {f"{name}.{kind}" for name, kinds in others for kind in kinds} <= known


def test_the_description_is_of_the_installed_library():
    remedy = "run python -m tools.describe_constructors"
    texts = describe.texts()
    if installed_release() == RELEASES[0]:
        assert texts.keys() == set(find_files(constructors.DESCRIPTION))
    assert {path: path.read_text() for path in texts} == texts, remedy
    assert constructors.outdated() == ""


@pytest.mark.parametrize(
    ("target", "function"),
    [
        (
            "executorch.backends.xnnpack.partition.xnnpack_partitioner:XnnpackPartitioner",
            XnnpackPartitioner,
        ),
        (
            "executorch.backends.xnnpack.quantizer.xnnpack_quantizer:"
            "get_symmetric_quantization_config",
            xnnpack_quantizer.get_symmetric_quantization_config,
        ),
    ],
)
def test_what_is_read_of_the_source_is_what_python_says(target, function):
    found = describe.describe(target)
    signature = inspect.signature(function).parameters.values()
    assert [each["name"] for each in found] == [each.name for each in signature]
    for mine, theirs in zip(found, signature, strict=True):
        if "default" in mine:
            assert mine["default"] == theirs.default
        else:
            assert theirs.default is inspect.Parameter.empty


@pytest.mark.parametrize("backend", DESCRIBED, **ids)
def test_every_option_is_a_parameter_or_says_what_else_it_is(backend):
    for stage, takes, model in stages(backend):
        known = {name for each in takes for name in constructors.parameters(each)}
        others = {
            option
            for option in model.model_fields
            if known.isdisjoint(each.renamed.get(option, option) for each in takes)
        }
        assert others - constructors.OURS == set(constructors.beyond(stage)) - constructors.OURS


@pytest.mark.parametrize("backend", DESCRIBED, **ids)
def test_every_parameter_is_an_option_or_says_why_not(backend):
    for _, takes, model in stages(backend):
        for each in takes:
            options = {each.renamed.get(name, name) for name in model.model_fields}
            known = constructors.parameters(each)
            assert set(each.left_out) <= set(known), each.target
            for name in known:
                assert (name in options) != (name in each.left_out), (each.target, name)
            assert set(each.renamed) <= set(model.model_fields)
            assert set(each.renamed.values()) <= set(known)


MEMBER = re.compile(r"([A-Za-z]\w*\.)+[A-Z]\w*|([A-Za-z]\w*\.)+k[A-Z]\w*")


def is_member(ours, code):
    """Return whether an option's default equals a default given as code.

    The code names an enumeration's member, without the prefix that all members share. A number
    comes from a constant of upstream's, which says nothing here.
    """
    name = code.rpartition(".")[2].lower()
    return isinstance(ours, int) or (isinstance(ours, str) and name.endswith(ours.lower()))


@pytest.mark.parametrize("backend", DESCRIBED, **ids)
def test_defaults_are_the_constructors_where_they_are_plain(backend):
    for _, takes, model in stages(backend):
        for each in takes:
            theirs = {p["name"]: p for p in constructors.described()["callables"][each.target]}
            differing = set()
            for option, field in model.model_fields.items():
                parameter = theirs.get(each.renamed.get(option, option), {})
                if "default" in parameter:
                    same = field.default == parameter["default"]
                elif MEMBER.fullmatch(parameter.get("code", "")):
                    same = is_member(field.default, parameter["code"])
                else:
                    continue
                if not same:
                    differing.add(option)
            assert differing == set(each.defaults), each.target


def test_describing_imports_no_backend_and_no_torch():
    script = (
        "import sys, tools.describe_constructors as d; d.texts()\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('torch', 'executorch')]"
    )
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True)


SOURCE = """
FLAGS = {"one": 1, "two": 2}
NAMED = "named"
class Reader:
    size: int = field(default=3)
    made: list = field(default_factory=list)
    later: int = field(init=False)
    def read(self, specs, other):
        self.options["asked"], self.options.get("fallback", False), self.options[other]
        self.options["written"] = "inside" in self.options
        other.get("not ours"), self.options.get(other, 1)
        for spec in specs:
            if spec.key == "compared" or spec.key in FLAGS or spec.key == NAMED:
                return spec.key in ("three", "compared")
            if spec.key == other.KEY:
                return "no key" == spec.value
"""


def test_keys_that_are_read_are_found(monkeypatch, tmp_path):
    (tmp_path / "reader.py").write_text(SOURCE)
    monkeypatch.setattr(describe, "source_of", lambda module: tmp_path / f"{module}.py")
    found = describe.describe("reader:Reader.read[self.options]")
    assert [(each["name"], each.get("default")) for each in found] == [
        ("asked", None),
        ("fallback", False),
        ("inside", None),
    ]
    names = ["compared", "one", "two", "named", "three"]
    for scope in ("", "Reader", "Reader.read"):
        keys = describe.describe(f"reader:{scope}[spec.key]")
        assert keys == [{"name": name, "kind": "key"} for name in names]
    with pytest.raises(LookupError, match="no key is read in the installed source"):
        describe.describe("reader:Reader[nothing]")
    assert describe.describe("reader:Reader") == [
        {"name": "size", "kind": "positional", "default": 3},
        {"name": "made", "kind": "positional", "code": "list"},
    ]


def test_what_is_not_there_is_an_error():
    with pytest.raises(LookupError, match="not in the installed source"):
        describe.describe("executorch.backends.xnnpack.partition.xnnpack_partitioner:Nonsense")
    with pytest.raises(LookupError, match="not installed"):
        describe.describe("executorch.backends.nonsense:Nonsense")


CONFIG = """
model: pair
methods:
  run:
    quantize: {quantizer: xnnpack, per_channel: false}
    partitioners: [{xnnpack: {per_op_mode: true}}]
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "pair.yaml").write_text(CONFIG)
    configs = read_configs(tmp_path)
    return configs.configs["pair"], configs.documents["pair"]


def described_otherwise(monkeypatch, change):
    told = copy.deepcopy(constructors.described())
    change(told)
    monkeypatch.setattr(constructors, "described", lambda: told)


def test_an_option_that_the_described_library_lacks_is_a_problem(config, monkeypatch):
    assert list(check_options(*config)) == []

    def renamed(told):
        for parameters in told["callables"].values():
            for each in parameters:
                each["name"] = each["name"].replace("per_op_mode", "op_mode")
                each["name"] = each["name"].replace("is_per_channel", "channelwise")

    described_otherwise(monkeypatch, renamed)
    quantizer, partitioner = (str(p).partition("/")[2] for p in check_options(*config))
    assert partitioner == (
        "pair.yaml:6: methods.run.partitioners[0].xnnpack.per_op_mode: is not an option of "
        "xnnpack in "
        "the installed executorch; did you mean 'op_mode'? known: configs, config_precisions, "
        "op_mode, force_non_static_weights_for_f32_linear"
    )
    assert quantizer.startswith(
        "pair.yaml:5: methods.run.quantize.per_channel: is not an option of "
    )


@pytest.mark.slow
def test_another_executorch_is_told_in_one_line_and_nothing_is_held_against_it(
    config, monkeypatch, built
):
    described_otherwise(
        monkeypatch, lambda told: told.update(versions={"executorch": "1.3.0"}, callables={})
    )
    assert list(check_options(*config)) == []
    told = constructors.outdated()
    installed = version("executorch")
    assert told == (
        f"options were checked against executorch 1.3.0, but {installed} is installed; run "
        "`python -m tools.describe_constructors`"
    )
    from pipeline.cli.grammar import Target
    from pipeline.features.explain.plan import preview
    from pipeline.plan.plan import Plan
    from pipeline.store.store import Store
    from pipeline.store.workspace import Workspace

    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
    lines = list(preview(Plan(Workspace(built.root, Store(built.store), 1)), [Target("pair")]))
    assert lines.count(told) == 1


def test_options_that_are_not_written_are_not_asked_for():
    backend = BACKENDS["xnnpack"]
    for options in (XnnpackOptions(), XnnpackQuantize(quantizer="xnnpack")):
        assert list(constructors.unknown_options(backend, options)) == []


def test_the_description_is_plain():
    for parameters in constructors.described()["callables"].values():
        for each in parameters:
            assert {"name", "kind"} <= each.keys() <= {"name", "kind", "default", "code"}
            ast.parse(each.get("code", "None"))


def test_cores_are_the_installed_ones():
    cores = CortexMOptions.model_fields["cpu"].annotation
    assert list(get_args(cores)) == describe.members(
        "executorch.backends.cortex_m.target_config:CortexM"
    )
