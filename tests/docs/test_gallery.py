"""The gallery: its page names every package, and a package is what ExecuTorch's own call makes.

Slow tests build one package, whose turn follows from the number of commits; with
PTE_PIPELINE_GALLERY=all, every one; with names, those. They need the extra `gallery`.
"""

import importlib.util
import os

import pytest

from examples import __main__, build, table

CHOSEN = os.environ.get("PTE_PIPELINE_GALLERY", "")


def chosen():
    if CHOSEN == "all":
        return build.packages()
    return CHOSEN.split(",") if CHOSEN else [__main__.part(__main__.turn())]


def test_every_package_has_its_turn():
    names = build.packages()
    assert {__main__.part(turn) for turn in range(7, 7 + len(names))} == set(names)


def test_the_page_has_a_measured_row_of_every_package():
    page = table.PAGE.read_text(encoding="utf-8")
    rows = page.partition(table.BEGIN)[2].partition(table.END)[0].splitlines()[2:]
    cells = {row.split("`")[1]: [c.strip() for c in row.split("|")[1:-1]] for row in rows}
    assert sorted(cells) == build.packages()
    for package, row in cells.items():
        assert all(row), package
        assert row[table.HEADINGS.index("bytes of the joint call")] == "the same", package


def test_a_record_becomes_a_row_and_the_rest_of_the_page_stays(tmp_path):
    page = tmp_path / "gallery.md"
    page.write_text(f"before\n{table.BEGIN}old\n{table.END}after\n")
    record = build.Record(
        "llama", ["decode"], ["XnnpackBackend"], 1500, 10, 7, True, 1e-6, True, 61.2, 30.0
    )
    table.write({"llama": vars(record)}, page)
    text = page.read_text()
    assert text.startswith(f"before\n{table.BEGIN}| package |") and text.endswith("after\n")
    (row,) = [line for line in text.splitlines() if "`llama`" in line]
    assert "| 7 of 10 | 1.5 kB | 1.0e-06 | the same | 61 | 30 |" in row and "old" not in text


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="extra `gallery`")
@pytest.mark.parametrize("package", chosen())
def test_package_is_what_a_users_script_makes_and_valid(package):
    record = build.build(package)
    build.keep(record)
    print(record)
    assert record.valid and record.same_bytes
