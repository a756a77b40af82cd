"""`doit affected` lists what a change since a revision affects, without a build."""

import json
import shutil

import pytest

from tests.features.gates.test_diff_packages import git

CONFIG = """model: one
methods:
  encode: {partitioners: []}
  decode: {partitioners: [xnnpack]}
"""


@pytest.fixture
def team(bench):
    """Two packages of one model, committed as `master`."""
    workspace = bench("archives")
    configs = workspace.root / "partition_configs"
    (configs / "many.yaml").unlink()
    (configs / "one.yaml").unlink()
    (configs / "pair.yaml").write_text(CONFIG)
    shutil.copy(configs / "pair.yaml", configs / "two.yaml")
    (workspace.root / ".gitignore").write_text("build*/\n.store/\n.doit*\n__pycache__/\n")
    git(workspace.root, "init", "-q", "-b", "master")
    git(workspace.root, "add", "-A")
    git(workspace.root, "commit", "-qm", "one")
    return workspace


def affected(workspace, *words):
    assert workspace.doit("affected", "master", "--json", *words) == 0, workspace.output
    record = json.loads(workspace.output)
    assert record["since"].startswith("master (")
    return {package.pop("package"): package for package in record["packages"]}


def test_nothing_is_affected_where_nothing_changed(team):
    (team.root / "README.md").write_text("of no package\n")
    assert affected(team) == {}
    assert team.doit("affected", "master") == 0
    assert team.output.startswith("0 of 2 packages affected since master (")


def test_a_method_whose_compilation_changed(team):
    team.edit(
        "partition_configs/pair.yaml",
        "encode: {partitioners: []}",
        "encode: {partitioners: [xnnpack]}",
    )
    (package,) = affected(team).values()
    (reason,) = package.pop("reasons")
    assert package == {"state": "changed", "lower": True, "validate": True, "methods": ["encode"]}
    assert reason.startswith("config methods.encode.partitioners: [] -> [{'name': 'xnnpack'")


def test_a_limit_is_validated_and_not_lowered_again(team):
    with (team.root / "partition_configs/two.yaml").open("a") as config:
        config.write("validate: {atol: 0.5}\n")
    package = affected(team)["two"]
    assert (package["state"], package["lower"], package["validate"]) == ("changed", False, True)
    assert package["methods"] == []
    assert team.doit("affected", "master", "t*") == 0
    assert team.output.split()[:3] == ["two", "changed", "validated"]
    assert "1 of 1 packages affected" in team.output


def test_packages_that_are_on_one_side_only(team):
    configs = team.root / "partition_configs"
    (configs / "two.yaml").rename(configs / "trio.yaml")
    packages = affected(team)
    assert [(name, package["state"]) for name, package in packages.items()] == [
        ("trio", "new"),
        ("two", "removed"),
    ]
    assert packages["trio"]["methods"] is None
    assert not packages["two"]["lower"]


def test_a_model_of_which_there_is_no_export_is_taken_for_changed(team):
    (team.root / "models" / "one.pt2").unlink()
    (team.root / "models" / "one.py").write_text("def export_methods(): ...\n")
    package = affected(team, "pair")["pair"]
    assert package["methods"] is None and package["lower"]
    assert package["reasons"] == ["model one is not exported in this store"]


def test_mistakes_in_a_config_are_the_reason(team):
    team.edit("partition_configs/pair.yaml", "[xnnpack]", "[xnnpakc]")
    (reason,) = affected(team, "pair")["pair"]["reasons"]
    assert reason.startswith("its config has mistakes (partition_configs/pair.yaml:4: ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "name a revision: doit affected <revision> [package ...]"),
        (("none",), "'none' is not a git revision; doit affected <revision> [package ...]"),
        (("master", "pari"), "'pari' is not a package; did you mean 'pair'? known: pair, two"),
    ],
)
def test_what_is_asked_wrongly(team, words, line):
    assert team.doit("affected", *words) == 1
    assert line in team.output
