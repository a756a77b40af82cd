from __future__ import annotations

import pytest

from tools.lines import find_excesses, find_shortfalls, measure_core, room_of
from tools.measures import (
    Measure,
    find_closure,
    find_imports,
    find_shared_names,
    measure_modules,
)

RECORDS = '''
"""Records."""
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

# Why a comment counts.
@dataclass(frozen=True)
class Point:
    x: int

class Pair(NamedTuple):
    left: Point

class Plain: ...
'''
USER = """
import shop.records
from shop import lazy

def total(found: dict[str, int]) -> int:
    "No node of this is read."
    result = 0
    for each in found:
        result += found[each]
    return result
"""
HEIR = """
from shop.records import Point

class Corner(Point): ...
"""
SHOP = {"shop.records": RECORDS, "shop.user": USER, "shop.lazy": "", "shop.heir": HEIR}


def test_a_record_is_also_what_inherits_from_one() -> None:
    measures = measure_modules(SHOP)

    assert measures["shop.records"].records == {"Point", "Pair"}
    assert measures["shop.heir"].records == {"Corner"}
    assert measures["shop.user"].records == set()


def test_a_class_name_of_two_modules_is_named() -> None:
    shop = {**SHOP, "shop.geometry": "class Corner: ...\nclass Edge: ..."}

    assert find_shared_names(shop) == {"Corner": ["shop.heir", "shop.geometry"]}
    assert find_shared_names(SHOP) == {}


def test_names_that_say_nothing_are_counted() -> None:
    measure = measure_modules(SHOP)["shop.user"]

    assert (measure.vague_names, measure.names) == (2, 4)  # found, each; result twice
    assert measure.vague_percent == 50


def test_annotations_and_docstrings_are_no_nodes() -> None:
    bare = USER.replace(": dict[str, int]", "").replace(" -> int", "")
    undocumented = bare.replace('    "No node of this is read."\n', "")

    nodes = [measure_modules({"shop.user": t})["shop.user"].nodes for t in (USER, undocumented)]

    assert nodes[0] == nodes[1]


def test_measures_add_up() -> None:
    measures = measure_modules(SHOP)
    total = sum(measures.values(), Measure())

    assert total.modules == 4
    assert total.nodes == sum(measure.nodes for measure in measures.values())
    assert total.records == {"Point", "Pair", "Corner"}
    assert total.comment_lines == 1


def test_a_comment_counts_unless_it_is_a_directive() -> None:
    lines = [
        "# Why alone.",
        "first = '# text'",
        'second = """',
        "# text",
        '"""',
        "third = 3  # why at the end",
        "fourth = 4  # noqa: F821",
        "fifth = 5  # type: ignore[misc, operator]",
        "sixth = 6  # fmt: skip",
        "seventh = 7  # noqa: F821 - why",
        "eighth = 8  # type: ignore[misc]  # why",
    ]
    measure = measure_modules({"shop.notes": "\n".join(lines) + "\n"})["shop.notes"]

    assert (measure.comment_lines, measure.lines) == (4, 11)
    assert measure.comment_percent == pytest.approx(36.4, abs=0.1)


def test_too_few_comments_are_reported() -> None:
    total = Measure(lines=200, comment_lines=3)

    assert find_shortfalls(total, {"comments": 1.5}) == []
    assert find_shortfalls(total, {"comments": 2.0}) == ["comments: 1.50 is less than 2"]


def test_a_closure_follows_imports_of_modules() -> None:
    imports = find_imports(SHOP)

    assert find_closure("shop.user", imports) == {"shop.user", "shop.records", "shop.lazy"}
    assert find_closure("shop.lazy", imports) == {"shop.lazy"}


@pytest.mark.parametrize(
    ("module", "room"),
    [("pipeline.tasks", "(top)"), ("pipeline.store", "store"), ("pipeline.run.build.link", "run")],
)
def test_the_room_of_a_module(module: str, room: str) -> None:
    assert room_of(module) == room


def test_a_figure_above_its_ceiling_is_named() -> None:
    total = Measure(code_lines=10, nodes=60, names=10, vague_names=1, records={"Point"})
    ceilings = {"nodes-a-line": 5.0, "records": 1, "vague-names": 10.0, "closure.shop.user": 2}

    assert find_excesses(total, ceilings, {"shop.user": 2}) == ["nodes-a-line: 6.00 exceeds 5"]
    assert find_excesses(Measure(), ceilings, {"shop.user": 3}) == [
        "shop.user: imports 3 modules, which exceeds 2"
    ]


def test_the_core_imports_no_feature() -> None:
    modules = {
        "pipeline.run": "from pipeline.features.rooms import door",
        "pipeline.features.rooms": "from pipeline import run",
    }
    core = measure_core(measure_modules(modules), find_imports(modules))

    assert core == {"core-nodes": 3, "core-importing-features": 1}
    ceilings = {"nodes-a-line": 1, "records": 0, "vague-names": 0, **core}
    excesses = find_excesses(Measure(), {**ceilings, "core-importing-features": 0}, {}, core)
    assert excesses == ["core-importing-features: 1.00 exceeds 0"]
