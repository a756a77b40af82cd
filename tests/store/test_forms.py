"""Values that match a form or an outline, and values that miss it in one respect."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.store.forms import Count, FileName, check_of

OUTLINE = {"name": str, "size?": Count, "files": {FileName: [(Count, None)]}, "pair": [str, {}]}
RECORD: dict[str, Any] = {"name": "n", "size": 1, "files": {"a.pte": [1, None]}, "pair": ["b", {}]}


def test_record_of_an_outline():
    assert check_of(OUTLINE)(RECORD)
    assert check_of(OUTLINE)({name: RECORD[name] for name in ("name", "files", "pair")})
    assert check_of(OUTLINE, open_fields=True)({**RECORD, "more": 1})


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"size": -1},
        {"size?": 1},
        {"more": 1},
        {"files": {"../a": [1]}},
        {"files": {"a.pte": ["1"]}},
        {"files": {"a.pte": 1}},
        {"files": []},
        {"pair": ["b"]},
        {"pair": ["b", {}, "c"]},
        {"pair": ["b", {"more": 1}]},
        {"pair": {}},
    ],
    ids=str,
)
def test_record_that_misses_its_outline(change):
    assert not check_of(OUTLINE)({**RECORD, **change})


@pytest.mark.parametrize("name", ["name", "files", "pair"])
def test_record_without_a_field(name):
    assert not check_of(OUTLINE)({key: RECORD[key] for key in RECORD if key != name})
