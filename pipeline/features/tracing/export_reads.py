"""Turns the record of an exporter's process into the exporter's inputs.

Everything that the process looked at counts. If the exporter declares `INPUTS`, the declaration
says which of it is meant, and anything else is an error.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipeline.features.tracing.nondeterminism import find_nondeterminism, find_strings
from pipeline.features.tracing.paths import is_no_file
from pipeline.features.tracing.tracer import Tracer
from pipeline.features.tracing.undeclared import list_undeclared
from pipeline.plan.kinds.export import ExportInputs
from pipeline.plan.places import FOLDER, SYSTEM, Kind, within
from pipeline.plan.reads import NEUTRAL, WHOLE_ENVIRONMENT, Finder, Reads, is_inside
from pipeline.run.export.declared_reads import (
    OWN,
    DeclaredReads,
    Seen,
    installed_distributions,
)
from pipeline.run.isolated import running_files
from pipeline.store.errors import SourceError
from pipeline.store.workspace import Workspace

# Entries next to a file outside the workspace, if only Python can be asked.
_MOST_BESIDE = 1000


class TracedReads(DeclaredReads):
    """Finds the inputs of an exporter among everything that its process touches."""

    watch: Tracer

    def __init__(self, workspace: Workspace, inputs: ExportInputs) -> None:
        super().__init__(workspace, inputs)
        relative = (p for p in inputs.surroundings.search if p and not os.path.isabs(p))
        self._search = {
            os.path.normpath(os.path.join(self._places.root, p)) for p in relative
        }
        # Top-level names in the folders of installed packages.
        self._touched: set[str] = set()
        self.watch = Tracer(self._is_wanted, self._observe)
        if not self.watch.is_kernel and inputs.declared is None:
            self._look_around(self._places.root, sys.maxsize - 1)

    def _is_wanted(self, path: str) -> bool:
        if path in self._search:
            # Python tries it as an archive of modules, as it does with the hooks of editable
            # installs.
            return os.path.isfile(path)
        if is_no_file(path):
            return False
        if self._places.wanted(path):
            return True
        for folder in self._places.installed:
            if path.startswith(f"{folder}{os.sep}"):
                top = path[len(folder) + 1 :].split(os.sep)[0]
                self._touched.add(top)
                return not _owners(top)
        return False

    def _observe(self, kind: Kind, path: str) -> str | None:
        return self.finder.observe(kind, self._places.spell(path))

    def _look_around(self, folder: str, most: int) -> bool:
        """Take everything in a folder as an input, unless it has more than `most` entries.

        Returns whether the folder was taken.
        """
        entries = [*islice(self._places.walk(folder), most + 1)]
        if len(entries) > most:
            return False
        for kind, path in entries:
            name = self._places.spell(path)
            if not self._can_record(name):
                continue
            self._before[kind, name] = self.finder.observe(kind, name)
        return True

    def _can_record(self, path: str) -> bool:
        if not _is_text(path):
            self.watch.unfollow(f"a name that is not UTF-8 ({path!a})")
        return _is_text(path)

    # After the run

    def find(
        self, modules: list[str], distributions: list[str], all_distributions: bool
    ) -> Reads:
        watch, declared = self.watch, self._inputs.declared
        observed = self._seen()
        sources = self._sources()
        self._check_declared(observed, sources)
        unfollowed: dict[str, None] = {}
        if declared is None:
            where = self._inputs.path
            unfollowed |= dict.fromkeys(
                f"{where} depends on {cause}" for cause in watch.unfollowed
            )
            for path in sources:
                name = self._places.spell(str(path))
                native = watch.view != "kernel"
                unfollowed |= dict.fromkeys(find_nondeterminism(path, name, native))
            if watch.view != "kernel":
                unfollowed |= dict.fromkeys(self._look_beside(observed))
        created = self._made()
        changed = dict(self._changed(observed, created))
        unfollowed |= dict.fromkeys(filter(None, changed.values()))
        unchanged = sorted((self._before.keys() | observed.keys()) - changed.keys())
        listed = {name for kind, name in unchanged if kind == "listing"}
        if all_distributions:
            listed |= set(map(self._places.spell, self._installations()))
        return Reads(
            files=tuple(name for kind, name in unchanged if kind == "file"),
            listings=tuple(sorted(listed)),
            links=tuple(name for kind, name in unchanged if kind == "link"),
            environment=tuple(sorted(self._environment())),
            modules=self._imported_modules(modules),
            distributions=tuple(
                sorted(self._distributions(modules) | set(distributions))
            ),
            made=tuple(
                path for path in created if (os.path.dirname(path) or ".") in listed
            ),
            unfollowed=tuple(unfollowed),
        )

    def find_looked_at(self, error: Exception) -> Reads:
        observed = self._seen()
        files = sorted(name for kind, name in observed if kind == "file")
        listings = sorted(name for kind, name in observed if kind == "listing")
        looked_at = super().find_looked_at(error)
        return looked_at._replace(files=tuple(files), listings=tuple(listings))

    def _seen(self) -> Seen:
        """Return everything that was seen, spelled as in records.

        Folders above the workspace or the home folder don't count, since resolving any path looks
        at them, nor do module folders, which every import looks at.
        """
        places = self._places
        searched = [places.home, *self._inputs.surroundings.search, *places.installed]
        running = running_files()
        observed: Seen = {}
        for (kind, path), value in self.watch.seen.items():
            above = within(places.root, os.path.normpath(path)) or any(
                within(folder, path) for folder in searched
            )
            counts = kind == "listing" or not (above or path in running)
            if counts and self._can_record(path):
                observed[kind, places.spell(path)] = value
        for place, value in observed.items():
            self.finder.assume(*place, value)
        observed.pop(("file", self._inputs.path), None)
        return observed

    def _made(self) -> list[str]:
        written = (p for p in self.watch.written if os.path.lexists(p) and _is_text(p))
        return sorted(set(map(self._places.spell, written)))

    def _installations(self) -> set[str]:
        """Return the folders outside the workspace that can hold installed distributions."""
        folders = {
            folder
            for folder in self._inputs.surroundings.search
            if os.path.isabs(folder)
        }
        search = {
            folder
            for folder in map(os.path.normpath, folders)
            if not within(folder, self._places.root) and self._places.wanted(folder)
        }
        return {*self._places.installed, *filter(os.path.isdir, search)}

    def _sources(self) -> list[Path]:
        """Return the files of the exporter and of the modules that it imported, the exporter first.

        Installed modules are left out.
        """
        exporter = self._workspace.root / self._inputs.path
        files = {path for path in self.watch.modules.values() if path.endswith(".py")}
        modules = sorted(
            path for path in files - {str(exporter)} if self._places.wanted(path)
        )
        return [exporter, *(Path(path) for path in modules if os.path.isfile(path))]

    def _changed(
        self, observed: Seen, created: list[str]
    ) -> Iterator[tuple[tuple[Kind, str], str]]:
        """Yield the places that have changed by now, each with a line.

        The line is "" if the exporter made a folder. Raises SourceError if a file of the workspace
        that was read has changed.
        """
        after = Finder(self._workspace, self._inputs.surroundings, self._places)
        created_paths = {*created, *map(self._places.spell, self.watch.written)}
        for kind, name in {**self._before, **observed}:
            old, new = (
                finder.observe(kind, name, created) for finder in (self.finder, after)
            )
            if old == new:
                continue
            is_own = name in created_paths or any(
                name.startswith(f"{path}/") for path in created_paths
            )
            if (
                kind == "file"
                and is_inside(name)
                and old is not None
                and (kind, name) in observed
            ):
                text = "changed while the exporter ran; run again"
                raise SourceError(f"{os.path.basename(name)}: {text}")
            if is_own:
                made_folder = old is None and new == FOLDER
                line = f"{self._inputs.path} reads and changes {name}"
                yield (kind, name), "" if made_folder else line
            else:
                yield (kind, name), f"{name} changed while {self._inputs.path} ran"

    def _environment(self) -> set[str]:
        """Return the variables that count; if a program was started, it may have read them all."""
        around, declared = self._inputs.surroundings, self._inputs.declared
        read = {*self.watch.environment} - self._uncounted()
        if declared is not None:
            return {*declared.environment, *read}
        if self.watch.processes or read >= os.environ.keys() - self._uncounted():
            return {*(read - os.environ.keys()), *around.names(), WHOLE_ENVIRONMENT}
        return read

    def _uncounted(self) -> set[str]:
        """Return the variables that don't count.

        These are the variables that are alike everywhere, and the home folder, unless code of the
        workspace reads `HOME` by name: paths in the home folder count by their contents.
        """
        for reader in self.watch.readers.get("HOME", ()):
            if self._places.wanted(reader) and not is_no_file(reader):
                return {*NEUTRAL}
        return {*NEUTRAL, "HOME"}

    def _distributions(self, modules: Iterable[str]) -> set[str]:
        touched: set[str] = set()
        for top in self._touched:
            touched |= _owners(top)
        return super()._distributions(modules) | (touched - {OWN})

    def _look_beside(self, observed: Seen) -> Iterator[str]:
        """Take all files next to each file outside the workspace as inputs.

        Native code reads files without an event in Python. Yields a line for each folder that is
        too large to be taken.
        """
        outside = {
            os.path.dirname(self._places.locate(name))
            for (kind, name), value in observed.items()
            if kind == "file" and value not in (None, FOLDER) and not is_inside(name)
        }
        modules = {os.path.dirname(path) for path in self.watch.modules.values()}
        for folder in sorted(outside - modules):
            system = any(within(folder, system_folder) for system_folder in SYSTEM)
            if not system and not self._look_around(folder, _MOST_BESIDE):
                yield f"{self._inputs.path} reads in {self._places.spell(folder)}, a large folder"

    # Reads that the exporter does not declare

    def _check_declared(self, observed: Seen, sources: list[Path]) -> None:
        """Raise SourceError if the exporter reads what it does not declare."""
        if self._inputs.declared is None:
            return
        undeclared = [
            name
            for (kind, name), value in observed.items()
            if self._is_beside(kind, name, value)
        ]
        strings = {text for path in sources for text in find_strings(path)}
        read = self.watch.find_variables([*map(str, sources)], strings)
        allowed = {*self._inputs.declared.environment, *NEUTRAL, "HOME"}
        undeclared += [f"env:{name}" for name in sorted(read - allowed)]
        if undeclared:
            mistake = (
                f"reads files that INPUTS does not name: {list_undeclared(undeclared)}"
            )
            raise SourceError(f"{self._inputs.path}: {mistake}")

    def _is_beside(self, kind: Kind, name: str, value: str | None) -> bool:
        declared, path = self._inputs.declared, self._places.locate(name)
        assert declared is not None
        if (kind == "file" and value == FOLDER) or (kind == "link" and value is None):
            return False  # only looked at on the way to a file
        if not is_inside(name):
            allowed = (
                *SYSTEM,
                *self._places.installed,
                *_folders_of(declared.distributions),
            )
            if value is None or any(within(path, folder) for folder in allowed):
                return False
        files = set(self.watch.modules.values())
        # Python lists a package's folder when it imports the package.
        parents = {*map(os.path.dirname, files)} - {
            self._places.root,
            str(self._workspace.models),
        }
        if path in files or (kind == "listing" and path in parents):
            return False
        return not declared.covers(self._places, path, listing=kind != "file")


def _is_text(name: str) -> bool:
    return name.isascii() or name == name.encode(errors="replace").decode()


def _owners(top: str) -> set[str]:
    """Return the distributions that own a top-level entry of an installation folder."""
    stem, _, suffix = top.rpartition(".")
    if suffix in ("dist-info", "egg-info", "data", "libs"):
        return {stem.partition("-")[0].replace("_", "-")}
    distributions = installed_distributions().get(top.partition(".")[0], ())
    return set(distributions) or ({"pip"} if top.endswith(".pth") else set())


def _folders_of(distributions: Iterable[str]) -> Iterator[str]:
    """Yield the source folders of distributions that are installed as editable."""
    for name in distributions:
        text = importlib.metadata.distribution(name).read_text("direct_url.json")
        address = str(json.loads(text).get("url", "")) if text else ""
        if address.startswith("file:"):
            yield os.path.normpath(unquote(urlsplit(address).path))
