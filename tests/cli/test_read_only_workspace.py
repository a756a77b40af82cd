"""A workspace mounted read-only, as in CI images."""

import shutil

import pytest

from tests.support.forked import run_doit
from tests.support.permissions import folders_of, mode, obey_permissions


@pytest.fixture
def sources(built):
    """The built workspace with read-only sources, without `build/` and the database."""
    shutil.rmtree(built.root / "build")
    (built.root / ".doit.sqlite3").unlink()
    store = built.root.parent / "store"
    built.store.rename(store)

    def doit(*words):
        environment = {**built.environment, "PTE_PIPELINE_STORE": str(store)}
        return run_doit(built.root, words, environment, 300, obey_permissions)

    with mode(folders_of(built.root), 0o555):
        yield doit, built


def test_what_runs_nothing_needs_neither_database_nor_build_folder(sources):
    doit, bench = sources
    for words, status in (
        (["--db-file=states", "check"], 0),
        (["plan", "--db-file", "states"], 0),
        (["list", "--all", "-s"], 0),
        (["explain", "pair"], 0),
        (["info", "lower:pair"], 1),  # doit's status: the task isn't up to date
        (["clean"], 0),
    ):
        code, output = doit(*words)
        assert code == status and "Permission" not in output, (words, output)
    assert not (bench.root / "build").exists()
    code, output = doit("--db-file", str(bench.root.parent / "states"))
    assert code == 3 and "build/: Permission denied; it must be a writable folder" in output


def test_a_build_goes_elsewhere_with_its_database(sources):
    doit, bench = sources
    elsewhere = bench.root.parent / "elsewhere"
    elsewhere.mkdir()
    with mode([bench.root], 0o755):
        (bench.root / "build").symlink_to(elsewhere)
    code, output = doit()
    assert code == 0 and (elsewhere / "pair" / "pair.pte").exists(), output
    assert (elsewhere / ".doit.sqlite3").exists()
    code, output = doit("--db-file", str(bench.root.parent / "states"), "lower")
    assert code == 0 and "up to date: 1 package" in output, output
    assert (bench.root.parent / "states").exists()
