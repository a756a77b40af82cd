"""Which operator libraries are installed, and when they are loaded."""

import re
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import executorch.exir
import pytest
import torch

from pipeline.features.exporters.missing_operator import explain_missing
from pipeline.program.operator_libraries import (
    LIBRARIES,
    find_library,
    find_operators,
    is_registered,
    likely_library,
    noting_operators,
    register_operators,
)

WHEEL = Path(next(iter(executorch.exir.__path__))).parent
DEFINED = re.compile(r"""(?:Library\(\s*|custom_op\(\s*)["'](\w+)(?:::\w+["']|["'],\s*["']DEF)""")
# From scripts, samples and tests, and what the table says about `cadence`.
LEFT_OUT = {"cadence", "executorch_utils", "jarvis_nn_ops", "my_ops"}


@pytest.mark.slow
def test_every_namespace_that_the_wheel_defines_is_in_the_table():
    texts = [
        path.read_text(errors="replace")
        for path in WHEEL.rglob("*.py")
        if "test" not in str(path.relative_to(WHEEL)) and "triton" not in path.parts
    ]
    found = {name for text in texts for name in DEFINED.findall(text)}
    assert {"llama", "executorch", "torchao"} <= found
    assert found - LEFT_OUT <= LIBRARIES.keys()


def test_every_module_of_the_table_is_there():
    packages = {"executorch": WHEEL.parent, "torchao": WHEEL.parent, "torch": WHEEL.parent}
    for module in (module for modules in LIBRARIES.values() for module in modules):
        path = packages[module.partition(".")[0]].joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), module


def test_an_operator_is_registered_when_it_is_named_and_a_strange_one_is_missing():

    assert is_registered("aten.add.Tensor")
    assert is_registered("aten.relu.default")
    assert not is_registered("aten.add.Matrix")
    assert register_operators(["aten.add.Tensor", "team.scale.default"]) == {
        "team.scale.default": ""
    }


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (
            "team_nobody.scale",
            "calls the operator team_nobody.scale, which no imported module registers",
        ),
        ("llama.nothing", "as executorch.extension.llm.custom_ops.custom_ops, in the exporter"),
        ("aten.relu.nothing", "calls the operator aten.relu.nothing, which no imported module"),
    ],
)
def test_an_exporter_that_asks_for_a_missing_operator_is_told_what_to_import(operator, words):
    with pytest.raises(AttributeError) as caught:
        attrgetter(operator)(torch.ops)
    assert words in explain_missing(caught.value)
    with pytest.raises(AttributeError) as caught:
        torch.nothing  # noqa: B018
    assert explain_missing(caught.value) == ""


def test_libraries_that_no_build_needs_are_named():
    assert likely_library("transformers.grouped_mm_fallback.default").startswith("transformers.")
    assert likely_library("llama.update_cache.default").startswith("executorch.")
    assert likely_library("team.scale.default") == ""


def test_operators_are_those_of_the_library_that_registers_them():
    with noting_operators("noted_ops"):
        torch.library.define("noted_space::double", "(Tensor x) -> Tensor")
    assert find_library("noted_space::double") == "noted_ops"
    assert find_library("llama::never.out") == "executorch.extension.llm.custom_ops.custom_ops"
    assert find_library("noted_nowhere::x.out") == ""


def test_a_library_that_lacks_something_says_so(monkeypatch):
    monkeypatch.setitem(LIBRARIES, "team", ("torchao.no_such_module",))
    missing = register_operators(["team.scale.default"])
    assert missing["team.scale.default"].startswith("torchao.no_such_module cannot be imported")


def test_operators_are_found_in_sub_graphs_and_arguments():
    document = {
        "nodes": [
            {"target": "torch.ops.aten.add.Tensor", "inputs": []},
            {"target": "torch.ops.higher_order.cond"},
            {"arg": {"as_graph": {"nodes": [{"target": "torch.ops.team.scale.out"}]}}},
            {"arg": {"as_operator": "torch.ops.team.other.default"}},
            {"target": "_operator.getitem"},
        ],
    }
    assert list(find_operators(document)) == [
        "aten.add.Tensor",
        "team.scale.out",
        "team.other.default",
    ]


def test_an_operator_of_a_plan_may_have_no_overload_and_any_name():
    known = ["aten.add.Tensor", "aten.relu", "aten.relu.default"]
    other = ["aten.add.default_x", "relu", "", "a.b.c.d", "x\0.y", "\ud800.a.b"]
    assert [name for name in [*known, *other] if is_registered(name)] == known


@pytest.mark.parametrize(
    ("reference", "allowed"),
    [
        ("team_ops", True),
        ("operators/lib.so", True),
        ("operators/../data/lib.so", False),
        ("operators/link/../lib.so", False),  # follows the link
        ("data/lib.so", False),
        ("subprocess", False),
        ("acme.ops", True),
    ],
)
def test_a_config_names_what_others_vouch_for(reference, allowed, tmp_path):
    from pipeline.features.operators.finding import may_load
    from pipeline.store.store import Store
    from pipeline.store.workspace import Workspace

    for name in ("operators/team_ops.py", "operators/lib.so", "data/lib.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "data" / "inner").mkdir()
    (tmp_path / "operators" / "link").symlink_to(tmp_path / "data" / "inner")
    workspace = Workspace(tmp_path, Store(tmp_path / "store"), 1, operators=("acme.ops",))
    assert may_load(reference, workspace) == allowed
    assert may_load(reference, replace(workspace, operators_folder=False)) == (
        reference == "acme.ops"
    )
