"""Finds and corrects records of archives that contradict the archives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pipeline.plan.corrections import keep_facts
from pipeline.plan.keys import programs_key
from pipeline.program.archive_facts import describe_archive
from pipeline.program.sources import ModelSource
from pipeline.store.errors import SourceError
from pipeline.store.file_digests import FileDigests
from pipeline.store.store import Store


def find_wrong_records(
    source: ModelSource, store: Store, digests: FileDigests
) -> Iterator[str]:
    """Correct records that differ from a model's archives, and yield a description of each.

    Archives that can't be read are skipped.
    """
    if source.form == "archive":
        archives = [source.path]
    elif source.form == "folder":
        archives = sorted(source.path.glob("*.pt2"))
    else:
        archives = []
    for archive in archives:
        with suppress(SourceError):
            facts = describe_archive(archive, digests=digests)
            entry = store.get_by_key(programs_key(facts.content))
            if entry is not None and entry.result["programs"] != facts.to_json():
                keep_facts(store, facts)
                yield f"the record of the programs in {archive.parent.name}/{archive.name}"
