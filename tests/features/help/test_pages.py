"""The help of commands, from both programs."""

import sys

import pytest

from pipeline.cli.commands import ANYWHERE, GROUPS, VERBS
from pipeline.features.help.pages import DOIT_COMMANDS, find_page, suggest_page
from pte_pipeline.command_line import main
from tests.support.bench import bench_of


@pytest.mark.parametrize("name", [*GROUPS, *VERBS, *ANYWHERE, *DOIT_COMMANDS])
def test_every_command_has_a_page(name):
    lines = find_page([name], "pte")
    assert lines[0].startswith(f"{name}: ") and lines[2].startswith(f"usage: pte {name}")
    assert max(map(len, lines)) <= 100 and "`doit " not in "".join(lines)
    assert f"  pte {name} ".rstrip() in "\n".join(find_page([], "pte"))


def test_a_page_is_that_of_the_first_command():
    assert find_page(["2", "lower:vision", "plan"], "doit")[0].startswith("lower: ")
    assert find_page(["lowr"], "doit") is None


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("methodz", "methods"),
        ("lwer", "lower"),
        ("methods.decode.partitionerz", "methods.<method>.partitioners"),
        ("per_op_modes", ""),
    ],
)
def test_the_nearest_page_is_suggested(word, nearest):
    hint = f"did you mean '{nearest}'? `doit help` lists all commands" if nearest else ""
    assert suggest_page(word) == hint


def test_help_is_an_option_of_all_commands(tmp_path):
    bench = bench_of("pair", tmp_path)
    page = "\n".join(find_page(["lower"], "doit")) + "\n"
    for words in (["lower", "pair", "-n", "2", "--help"], ["-n", "2", "lower", "-h"]):
        assert bench.doit(*words) == 0 and bench.output == page
    assert bench.doit("-h") == 0 and bench.output.startswith("doit builds ExecuTorch packages")
    assert bench.doit("list", "-h") == 0 and bench.output.startswith("list: list the tasks\n")
    assert bench.doit("help", "methodz") == 3 and "no help on 'methodz'; did you" in bench.output
    assert bench.doit("--frob") == 3
    assert bench.output.endswith(": option --frob not recognized; see `doit help` [PTE704]\n")


def test_settings_that_are_no_toml_are_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "pyproject.toml").write_text("[tool.pte-pipeline\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pte", "lower"])
    assert main() == 3
    line = "ERROR: pyproject.toml: is not valid TOML: Expected ']' at the end of a table"
    assert capsys.readouterr().err.startswith(line)


def test_versions_are_those_of_the_environment(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pte", "--version"])
    assert main() == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["pte-pipeline", "executorch", "torch", "doit"]
