"""Corrects records that contradict the archives that they describe.

Such a record comes from a remote, or from an archive that was replaced while an older release was
reading it. Code that detects one drops it, so that it is made again from the archive itself, or by
the exporter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.plan.keys import programs_key
from pipeline.program.archive_facts import describe_archive
from pipeline.program.sources import ArchiveFacts, MethodSource
from pipeline.store.digest import Digest, hash_json
from pipeline.store.places import action_of
from pipeline.store.store import Store


def correct_record(source: MethodSource, archive: Path, store: Store) -> None:
    """Drop the record of which program a method's source holds, because it is wrong.

    This is the record of the archive, which is made again, or the result of the export that wrote
    the archive. Raises SourceError if the archive can't be read.
    """
    if source.exported:
        assert source.content is not None  # the archive is a blob of the store
        for action in _find_exports(store, source.content):
            store.distrust(action)
    else:
        keep_facts(store, describe_archive(archive))


def keep_facts(store: Store, facts: ArchiveFacts) -> None:
    """Replace a wrong record of an archive with the right one."""
    key = programs_key(facts.content)
    store.distrust(hash_json(key))
    store.put_result(key, {"programs": facts.to_json()})


def _find_exports(store: Store, archive: Digest) -> Iterator[Digest]:
    """Yield the export actions whose results name an archive with this digest."""
    for path in store.root.glob("actions/*/*.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            content = path.read_bytes()
            if archive.encode() not in content:
                continue
            record = json.loads(content)
            if record["key"]["kind"] == "export":
                yield action_of(path)
