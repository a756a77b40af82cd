"""Describes the programs of a PT2 archive: their digests, and summaries that explain differences.

A digest covers the *program*, not the file: its canonical graph, signature and ranges, and the
bytes of its tensors. Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.program.archive_reader import KINDS, ArchiveReader, open_archive
from pipeline.program.buffers import describe_buffers
from pipeline.program.canonical import Canonical, canonical_program, summarize_parts
from pipeline.program.module_paths import outline_archive
from pipeline.program.sources import ArchiveFacts, ProgramFacts, shown, unreadable
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import SourceError
from pipeline.store.file_digests import FileDigests, find_stamp, stamp_of
from pipeline.store.files import stat_file

# By tensor, the digest of its member: all bytes of its storage.
Contents = Mapping[str, Digest]
# The digests of a program, of its names, and of its structure, and its contents. The structure
# leaves out the contents of weights and constants, but keeps which of them share storage.
Identity = tuple[Digest, Digest, Digest, Contents]
# The identities that this process has computed, keyed by archive, entry and the file's stamp.
_identities: dict[tuple[Any, ...], Identity] = {}


def describe_archive(
    path: Path,
    content: Digest | None = None,
    digests: FileDigests | None = None,
    is_own: bool = False,
) -> ArchiveFacts:
    """Describe the entries of a PT2 archive.

    The digest of a program covers its canonical graph, its signature and ranges, and the bytes of
    every weight and constant.

    Args:
        content: the digest of the file's bytes, if the caller knows it.
        digests: a cache of file digests, keyed by the files' stamps.
        is_own: the file was just written here and hashed on the way, so only its tensors are read,
            and their checksums aren't verified. Whoever reads the file later verifies its content.

    Raises:
        SourceError: the file isn't a PT2 archive, or changed while it was read.
    """
    digests = digests or FileDigests()
    try:
        stat_file(path)
    except OSError as error:
        raise SourceError(f"{shown(path)}: {unreadable(error)}") from error
    # Describe and hash the same open file, and compare its stamp before and after. If it changed in
    # between, the store would serve these facts under the digest of other content from then on.
    with open_archive(path) as archive:
        file = archive.members.file
        stamp = stamp_of(os.fstat(file.fileno()))
        known: Contents | None = {} if is_own else None
        entries = [
            _describe_entry(archive, entry, known) for entry in archive.entries()
        ]
        content_read = content if content and is_own else digests.hash_open(path, file)
        # Other processes touch a file of the store when they use it.
        is_unchanged = is_own or stamp == stamp_of(os.fstat(file.fileno()))
    if not is_unchanged or content not in (None, content_read):
        raise SourceError(f"{shown(path)}: changed while it was read; run again")
    for facts, identity in entries:
        _identities[path, facts.entry, *stamp] = identity
    return ArchiveFacts(content_read, tuple(facts for facts, _ in entries))


def identify_program(
    path: Path, entry: str, contents: Contents | None = None
) -> Identity:
    """Return the digests of a program in an archive, of its names, structure and tensors.

    The first two equal those in `describe_archive`'s facts. A file is read again only if it
    changed.

    Args:
        contents: tensors that need not be hashed. If the program then has the expected digest,
            these are the right ones; the caller must still check the bytes that it reads.

    Raises:
        SourceError: the archive can't be read.
    """
    place = path, entry, *find_stamp(path)
    if place in _identities:
        return _identities[place]
    with open_archive(path) as archive:
        identity = _identify(
            archive,
            entry,
            canonical_program(archive.program(entry)),
            _tensor_digests(archive, entry, contents or {}),
        )
    if not contents:
        _identities[place] = identity
    return identity


def _describe_entry(
    archive: ArchiveReader, entry: str, known: Contents | None
) -> tuple[ProgramFacts, Identity]:
    program = archive.program(entry)
    canonical = canonical_program(program)
    tensors = _tensor_digests(archive, entry, known)
    identity = _identify(archive, entry, canonical, tensors)
    parts = {
        **summarize_parts(canonical, tensors),
        "contents": identity[3],
        "outline": outline_archive(program, tensors)._asdict(),
        "buffers": describe_buffers(program),
    }
    members, examples = archive.members, f"data/sample_inputs/{entry}.pt"
    inputs = members.hash(examples) if members.has(examples) else None
    return ProgramFacts(entry, *identity[:2], inputs, parts), identity


def _identify(
    archive: ArchiveReader,
    entry: str,
    canonical: Canonical,
    tensors: Mapping[str, Mapping[str, Any]],
) -> Identity:
    # Of `path_name`, only the first part is kept, the member's number: it says which tensors share
    # a member. The second part is the digest of the member's bytes.
    places: dict[str, dict[str, Any]] = {}
    contents: dict[str, Digest] = {}
    for kind, records in tensors.items():
        contents |= {name: record["path_name"][1] for name, record in records.items()}
        places[kind] = {
            name: {**record, "path_name": record["path_name"][0]}
            for name, record in records.items()
        }
    program = {"program": canonical.text}
    if replaced_sizes := archive.replaced_sizes(entry):
        program["replaced_sizes"] = digest.canonical_json(replaced_sizes)
    return (
        _hash_with(program, tensors),
        digest.hash_json(canonical.names),
        _hash_with(program, places),
        contents,
    )


def _hash_with(texts: Mapping[str, bytes], tensors: Mapping[str, Any]) -> Digest:
    """Return the digest of a record of encoded fields and of the records of tensors."""
    encoded = {kind: digest.canonical_json(tensors[kind]) for kind in tensors}
    return digest.hash_bytes(digest.join_fields({**texts, **encoded}))


def _tensor_digests(
    archive: ArchiveReader, entry: str, known: Contents | None
) -> dict[str, dict[str, Any]]:
    """Return the records of all tensors, with the digests of their bytes and with their tags.

    Args:
        known: tensors whose digests needn't be computed. If it is None, checksums are verified,
            too: without any, nothing else shows that an archive is damaged.
    """
    tensors = {kind: _payload_digests(archive, kind, entry, known) for kind in KINDS}
    for name, tag in archive.tags(entry).items():
        for records in tensors.values():
            if name in records:
                records[name]["tag"] = tag
    return tensors


def _payload_digests(
    archive: ArchiveReader, kind: str, entry: str, known: Contents | None
) -> dict[str, Any]:
    """Return the record of each tensor, its member's name replaced by a number and a digest."""
    records = archive.payloads(kind, entry)
    members: dict[str, list[Any]] = {}
    for tensor, record in sorted(records.items()):
        name = record["path_name"]
        if name not in members:
            content = (known or {}).get(tensor) or archive.members.hash(
                f"data/{kind}/{name}", known is None
            )
            # The number shows which tensors share a member, and so alias each other.
            members[name] = [len(members), content]
        record["path_name"] = members[name]
    return records
