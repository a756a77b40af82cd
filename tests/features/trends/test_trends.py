"""The figures of packages from revision to revision."""

import json
import subprocess

import pytest

from pipeline.features.gates.baseline import format_baseline
from pipeline.features.gates.figures import make_figures
from pipeline.features.overview.overview import write_overview
from pipeline.features.trends.history import HISTORY, find_histories, record_figures
from pipeline.features.trends.section import section
from pipeline.report.events import Event
from pipeline.report.packages import Entry
from pipeline.report.render import render_all
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support import builds

VALIDATED = [Event("validate", "asr", None, "asr", "built")]


def git(space, *words):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *who, *words], cwd=space.root, check=True, capture_output=True)
    return done.stdout.decode().strip()


def commit(space, text):
    (space.root / "model.py").write_text(text)
    git(space, "add", "model.py", "baselines")
    git(space, "commit", "-qm", text)
    return git(space, "rev-parse", "HEAD")


def accept(space, size):
    manifest = builds.manifest(files={"asr.pte": {"digest": "a" * 64, "size": size}})
    text = format_baseline("asr", make_figures(manifest))
    (space.root / "baselines" / "asr.yaml").write_text(text)


def build(space, size, **methods):
    """Write the files of a validated build, and record its figures."""
    folder = space.package("asr")
    folder.mkdir(parents=True, exist_ok=True)
    manifest = builds.manifest(files={"asr.pte": {"digest": "a" * 64, "size": size}})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    record_figures(space, VALIDATED, {})


def history(space, package="asr"):
    return find_histories(space, [package]).get(package, [])


@pytest.fixture
def space(tmp_path):
    root = tmp_path / "workspace"
    (root / "baselines").mkdir(parents=True)
    made = Workspace(root, Store(tmp_path / "store"), 1)
    git(made, "init", "-q")
    (root / "baselines" / "README").write_text("of packages")
    return made


def test_a_build_of_each_commit_is_a_row_and_the_latest_one_of_it_counts(space):
    commits = []
    for size in (1000, 1200):
        commits.append(commit(space, f"{size}"))
        build(space, size)
    build(space, 1300)
    rows = history(space)
    assert [(row["commit"], row["size"]) for row in rows] == [
        (commits[0], 1000),
        (commits[1], 1300),
    ]
    assert rows[0]["delegated"] == 17 / 20


def test_what_is_not_committed_is_no_revision(space):
    commit(space, "one")
    (space.root / "model.py").write_text("edited")
    build(space, 1000)
    assert history(space) == []
    git(space, "checkout", "-q", "model.py")
    record_figures(space, [Event("link", "asr", None, "asr", "built")], {})
    assert history(space) == []
    build(space, 1000)
    assert len(history(space)) == 1


def test_a_history_begins_with_the_baselines_that_were_accepted(space):
    for size in (700, 800):
        accept(space, size)
        commit(space, f"{size}")
    (space.root / "baselines" / "asr.yaml").write_text("not: a baseline\n")
    commit(space, "broken")
    build(space, 900)
    build(space, 900)
    assert [row["size"] for row in history(space)] == [700, 800, 900]


def test_workspaces_that_share_a_store_have_histories_of_their_own(space, tmp_path):
    commit(space, "one")
    build(space, 1000)
    other = Workspace(tmp_path / "other", space.store, 1)
    other.root.mkdir()
    assert history(other) == []
    moved = Workspace(space.root.rename(tmp_path / "moved"), space.store, 1)
    assert history(moved) == []  # without an origin, a repository is its folder
    git(moved, "config", "remote.origin.url", "https://user:secret@host/repository")
    build(moved, 1000)
    assert len(history(moved)) == 1
    assert "secret" not in (space.store.root / HISTORY).read_text()


def test_without_git_or_with_a_damaged_record_nothing_is_noted(tmp_path):
    space = Workspace(tmp_path, Store(tmp_path / "store"), 1)
    build(space, 1000)
    assert history(space) == []
    space.store.root.mkdir(exist_ok=True)
    (space.store.root / HISTORY).write_text('{"rows": [{"package": 3}]}')
    assert history(space) == []


def row(commit, size, latency=None, processor="a", sqnr=None):
    figures = {"size": size, "delegated": 0.5, "sqnr_db": sqnr, "latency": latency}
    return {"commit": commit * 40, "time": 86_400 * size, "processor": processor, **figures}


HISTORY_ROWS = [
    row("a", 1000, latency=5.0, processor="b", sqnr=60.0),
    row("b", 2000, latency=2.0, sqnr=60.0),
    row("c", 3000, latency=4.0, sqnr=60.0),
]


def test_a_row_tells_now_and_where_it_was_another():
    entries = [Entry("asr", history=HISTORY_ROWS), Entry("one", history=HISTORY_ROWS[:1])]
    (table,) = section(entries).parts
    (cells,) = table.rows
    assert cells["package"].text == "asr"
    assert (cells["size"].text, cells["size"].note) == ("3.0 kB", "2.0 kB at bbbbbbbb")
    assert cells["size"].spark == "0,18 50,10 100,2"
    assert cells["worst SQNR"].note == "" and cells["worst SQNR"].spark == "0,10 50,10 100,10"
    assert cells["slowest method"].note == "2 ms at bbbbbbbb"  # the first is from another machine
    assert cells["slowest method"].spark == "50,18 100,2"
    assert cells["revisions"].note == "since aaaaaaaa, 1972-09-27"


def test_the_page_over_all_packages_draws_it(space):
    page = render_all([Entry("asr", history=HISTORY_ROWS)])["index.html"].decode()
    assert '<polyline points="0,18 50,10 100,2"/>' in page and "1972" in page
    for size in (1000, 2000):
        commit(space, f"{size}")
        build(space, size)
    write_overview(space, ["asr"])
    assert "\N{NO-BREAK SPACE}kB at" in (space.build / "index.html").read_text()
