"""Tasks are made only for what a command line selects."""

import json
import shutil

import pytest

from pipeline.cli import tasks
from pipeline.cli.selection import ALL, Selection, find_selection

OURS = vars(tasks)


@pytest.mark.parametrize(
    ("words", "packages", "whole"),
    [
        (["lower:a"], {"a"}, True),
        (["lower:a", "validate:b", "compile:c/x+y"], {"a", "b", "c"}, False),
        (["quantize:a/x"], {"a"}, False),
        (["lower", "validate"], None, True),
        (["lower"], None, True),
        (["lower:*"], None, False),
        (["lower:a", "validate"], None, True),
        (["lower", "compile"], None, False),
        (["export:m"], None, False),
        (["build/a/m.pte"], None, False),
        (["lower:a", "-x"], None, False),
        (["mine"], None, False),
    ],
)
def test_words_that_name_packages_select_them(words, packages, whole):
    wanted = Selection(None if packages is None else frozenset(packages), whole)
    assert find_selection(OURS, True, words) == wanted
    assert find_selection(OURS, False, words) == ALL  # `doit list` and the like


def test_tasks_of_the_user_may_depend_on_any():
    def task_mine():
        return {"actions": None, "task_dep": ["compile:b/x"]}

    class Maker:
        def create_doit_tasks(self):
            return None

    for more in ({"task_mine": task_mine}, {"maker": Maker()}):
        assert find_selection({**OURS, **more}, True, ["lower:a"]) == ALL


def test_unknown_packages_leave_it_to_doit():
    selection = Selection(frozenset({"typo"}))
    assert selection.choose({"a": "a", "b%20": "b "}) == ["a", "b "]
    assert Selection(frozenset({"b%20"})).choose({"a": "a", "b%20": "b "}) == ["b "]


def test_one_package_is_planned_alone(built):
    """The model of the other package isn't even looked at."""
    for folder in ("models", "partition_configs"):
        for path in (built.root / folder).glob("pair.*"):
            shutil.copy(path, path.with_name(path.name.replace("pair", "other")))
    built.edit("partition_configs/other.yaml", "model: pair", "model: other")
    (built.root / "models" / "other.py").unlink()
    (built.root / "models" / "other.py").mkdir()
    assert built.doit("lower:pair") == 0, built.output
    assert built.output == "up to date: 1 package\n"
    assert built.doit("lower:typo") != 0
    assert "no package 'typo'; known: other, pair" in built.output
    assert built.doit("list", "--all") == 0
    assert "lower:other" in built.output and "compile:pair/encode" in built.output


def test_a_plan_finds_what_a_run_would_find(built):
    """A lowered package is up to date even without its objects, and so are its methods."""
    entries = [*built.store.glob("actions/*/*.json")]
    objects = [p for p in entries if json.loads(p.read_bytes())["key"]["kind"] == "compile"]
    assert len(objects) == 2
    for path in objects:
        path.unlink()
    assert built.doit() == 0
    assert built.output == "up to date: 1 package\n"
    assert built.doit("plan") == 0
    assert built.output == "5 current\n"


def test_what_a_verb_found_out_is_remembered(built):
    record = built.root / "build" / ".files.json"
    record.unlink()
    built.settle()
    assert built.doit("plan") == 0, built.output
    assert record.exists()
    record.unlink()
    assert built.doit("list") == 0
    assert record.exists()
