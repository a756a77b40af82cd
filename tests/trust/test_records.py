"""A record that contradicts its archive is dropped, and made again in the same run."""

import pytest

from pipeline.plan.keys import programs_key
from pipeline.program.archive_facts import describe_archive
from pipeline.store.digest import hash_bytes
from pipeline.store.store import Store
from tests.support.sites import Site


def poison(store, archive):
    """Record another program for an archive, as if it had been replaced while being read."""
    facts = describe_archive(archive)
    programs = facts.to_json()
    programs[0]["program"] = hash_bytes(b"another program")
    store.put_result(programs_key(facts.content), {"programs": programs})


@pytest.fixture
def archives(bench):
    return bench("archives")


@pytest.mark.parametrize("by", ["the store", "a remote"])
def test_a_wrong_record_is_corrected_by_the_run_that_meets_it(archives, tmp_path, by):
    archive, remote = archives.root / "models" / "one.pt2", Site((tmp_path / "remote").as_uri())
    environment = {}
    if by == "the store":
        poison(Store(archives.store), archive)
    else:
        poison(Store(tmp_path / "elsewhere", remote.settings()), archive)
        environment = {
            "PTE_PIPELINE_REMOTE": remote.url,
            "PTE_PIPELINE_REMOTE_TRUST": "unsigned",
            "PTE_PIPELINE_REMOTE_MODE": "read-only",
        }
    assert archives.doit("lower:one", **environment) == 0, archives.output
    assert archives.doit("lower:one", **environment) == 0
    assert archives.output.startswith("up to date: 1 package")
    assert archives.doit("cache", "verify") == 0, archives.output
    facts = describe_archive(archive)
    entry = Store(archives.store, remote.settings()).get_by_key(programs_key(facts.content))
    assert entry.result["programs"] == facts.to_json()


def test_verifying_the_store_finds_a_wrong_record(archives):
    poison(Store(archives.store), archives.root / "models" / "one.pt2")
    assert archives.doit("cache", "verify") != 0
    assert "wrong: the record of the programs in models/one.pt2; corrected\n" in archives.output
    assert ": 1 bad\n" in archives.output
    assert archives.doit("cache", "verify") == 0
    assert "all good" in archives.output
