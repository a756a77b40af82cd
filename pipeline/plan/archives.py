"""The archives of models, described without torch: from the store, or else by reading them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.plan import keys
from pipeline.program import sources
from pipeline.program.sources import ArchiveFacts, MethodSource
from pipeline.store.digest import Digest
from pipeline.store.errors import SourceError
from pipeline.store.usage import Usage
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.program.module_paths import Outline


class Archives:
    """The archives of a workspace's models, each read once.

    Attributes:
        usage: how often the store already had a description.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.usage: dict[str, Usage] = {}
        self._workspace = workspace
        self._described: dict[Digest, tuple[ArchiveFacts, float]] = {}

    def describe(self, path: Path, origin: str) -> ArchiveFacts:
        """Describe the content of an archive.

        The description is cached by the archive's stamp and `origin`, or is in the store by its
        digest; otherwise the archive is read.
        """

        def describe(path: Path) -> Any:
            content = self._workspace.file_digests.hash(path)
            entry = self._workspace.store.get_by_key(keys.programs_key(content))
            if entry is not None:
                usage = self.usage.setdefault("programs", Usage())
                usage.add(Usage(hits=1, saved=entry.seconds))
                return [content, entry.result["programs"]]
            return [content, self._read(path, content).to_json()]

        with reading(path):
            described = self._workspace.archive_digests.cached(
                path,
                "programs",
                describe,
                origin,
            )
        return sources.parse_archive(*described)

    def outline(self, source: MethodSource) -> Outline | None:
        """Return the modules and tensors of a method's program, or None if they aren't known.

        Raises SourceError.
        """
        parts = self._find_parts(source, "outline")
        if parts is None:
            return None
        # Imported lazily: a run with nothing to do needs no outline.
        from pipeline.program.module_paths import Outline

        return Outline(**parts["outline"])

    def buffers(self, source: MethodSource) -> Mapping[str, Any] | None:
        """Return the buffers that a method's program uses (`describe_buffers`), or None if unknown.

        Raises SourceError.
        """
        parts = self._find_parts(source, "buffers")
        return None if parts is None else parts["buffers"]

    def _find_parts(self, source: MethodSource, part: str) -> Mapping[str, Any] | None:
        """Return the parts of a method's program from the store or, failing that, from its archive.

        The archive is read because the validity of a config must not depend on earlier builds.
        Returns None without either, for example for an exporter whose results are at a remote.
        Raises SourceError.

        Args:
            part: the requested part, which the record of an older release may lack.
        """
        for facts, _ in self._described.values():
            parts = facts.find_parts(source.program)
            if parts is not None:
                return parts
        entry = self._workspace.store.get_by_key(keys.program_key(source.program))
        if entry is not None and part in entry.result:
            return entry.result
        if not source.archive.is_file():
            return None
        return self._read(source.archive, source.content).find_parts(source.program)

    def _read(self, path: Path, content: Digest | None) -> ArchiveFacts:
        """Read an archive, and keep its description until `remember`. Raises SourceError."""
        # Imported lazily: a run with nothing to do reads no archive.
        from pipeline.program.archive_facts import describe_archive

        started = time.perf_counter()
        facts = describe_archive(path, content, self._workspace.file_digests)
        seconds = time.perf_counter() - started
        self.usage.setdefault("programs", Usage()).add(Usage(misses=1, spent=seconds))
        self._described[facts.content] = facts, seconds
        return facts

    def remember(self) -> None:
        """Store the descriptions of the archives that were read."""
        store = self._workspace.store
        self._workspace.archive_digests.save()
        # Only a convenience: a store that can't be written to is just read.
        with suppress(OSError):
            while self._described:
                content, (facts, seconds) = self._described.popitem()
                store.put_result(
                    keys.programs_key(content),
                    {"programs": facts.to_json()},
                    seconds,
                )
                for program in facts.programs:
                    store.put_result(keys.program_key(program.program), program.parts)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise SourceError in place of an OSError in the block, which reads a model's file."""
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"{sources.shown(path)}: {sources.unreadable(error)}"
        ) from error
