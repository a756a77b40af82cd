"""Records the places that an export read, and finds what is there now.

The places are known only after a run. So a record, named by model and exporter, holds the places
that the last runs read (ccache calls this its manifest, ninja a depfile); the key of an export
holds what was found there. The plan looks at the places of each record again, in this checkout and
this environment, and takes the first record whose export is in the store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from fnmatch import filter as filter_names
from functools import cached_property
from importlib.machinery import PathFinder, all_suffixes
from typing import Any, NamedTuple

from pipeline.plan.places import Kind, Places, within
from pipeline.store.digest import Digest, hash_bytes, hash_json
from pipeline.store.forms import SystemName, check_of
from pipeline.store.toolchain import HASH_SEED
from pipeline.store.workspace import Workspace

MOST_RECORDS = 8  # of runs that took different paths
WHOLE_ENVIRONMENT = "*"
# Variables that every shell sets, that only describe where a build runs, or that have their own
# field in the key. They count only if they are read by name.
_PASSING = ("_", "SHLVL", "COLUMNS", "LINES", HASH_SEED)
_OURS = "PTE_PIPELINE_"
# Variables that are the same in every exporter's process (features/exporters/neutral.py), so none
# of them is an input.
LOCALE = (
    *("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE"),
    *("LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
)
NEUTRAL = (*LOCALE, "OLDPWD", "PWD", "TEMP", "TMP", "TMPDIR", "TZ")


class Reads(NamedTuple):
    """The places that an export read, each once and sorted; only keys hold their digests.

    Attributes:
        files, listings, links: paths as `Places` spells them, by the kind of access.
        environment: names of variables; `*` for the set of all names, `NUMBA_*` for the set of
            names with this prefix.
        modules: names of top-level modules that were imported, or searched for in vain.
        distributions: distributions whose modules were imported, or whose files were read.
        made: files and folders that the exporter made in folders that it lists, which don't count
            there.
        unfollowed: operations that can't be tracked, a line each. If there are any, the export is
            not reusable: it runs again in each run.
    """

    files: tuple[str, ...] = ()
    listings: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    unfollowed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, list[str]]:
        return {name: list(value) for name, value in self._asdict().items() if value}

    @classmethod
    def from_json(cls, record: Any) -> Reads | None:
        """Read a record; return None for anything else, such as a record of an older version."""
        if _IS_RECORD(record):
            return cls(**{name: tuple(value) for name, value in record.items()})
        return None


_IS_RECORD = check_of({f"{name}?": [SystemName] for name in Reads._fields})


def parse_records(result: Mapping[str, Any]) -> list[Reads]:
    """Return the runs in a `reads` record, the most recent first."""
    runs = result.get("runs", ())
    records = map(Reads.from_json, runs if isinstance(runs, list) else ())
    return [record for record in records if record is not None]


class Surroundings(NamedTuple):
    """The module path of the process that plans, and digests of its environment variables.

    A worker has others, so an export takes these with it.
    """

    environment: Mapping[str, Digest]
    search: tuple[str, ...]

    @classmethod
    def present(cls) -> Surroundings:
        values = {
            name: hash_bytes(os.fsencode(value)) for name, value in os.environ.items()
        }
        return cls(values, tuple(sys.path))

    def names(self) -> list[str]:
        """Return the variables that can matter to an export that looks at all of them."""
        # HOME doesn't count: paths inside the home folder count by their content.
        passing = (*_PASSING, *NEUTRAL, "HOME")
        return sorted(
            name
            for name in self.environment
            if name not in passing and not name.startswith(_OURS)
        )


class Finder:
    """Finds what is now at the places that exports read, looking at each place once."""

    def __init__(
        self,
        workspace: Workspace,
        surroundings: Surroundings,
        places: Places | None = None,
    ) -> None:
        self.places = places or Places(workspace)
        self.surroundings = surroundings
        self._models = str(workspace.models)
        self._seen: dict[tuple[Kind, str], str | None] = {}
        self._names: dict[str, list[str] | None] = {}
        self._installed: dict[str, bool] = {}

    def observe(self, kind: Kind, name: str, made: Iterable[str] = ()) -> str | None:
        """Return what is at a place, like `Places.observe`; a listing omits the names in `made`."""
        if kind == "listing":
            return self._observe_listing(name, made)
        key = kind, name
        if key not in self._seen:
            self._seen[key] = self.places.observe(kind, self.places.locate(name))
        return self._seen[key]

    def assume(self, kind: Kind, name: str, value: str | None) -> None:
        """Use an earlier observation of a place instead of looking at it."""
        if kind != "listing":
            self._seen[kind, name] = value

    def _observe_listing(self, name: str, made: Iterable[str]) -> str | None:
        if name not in self._names:
            self._names[name] = self.places.names(self.places.locate(name))
        names = self._names[name]
        created = set()
        for path in made:
            if (os.path.dirname(path) or ".") == name:
                created.add(os.path.basename(path))
        if names is None:
            return None
        return hash_json([n for n in names if n not in created])

    def find(
        self, reads: Reads, declared: Iterable[str] = ()
    ) -> dict[str, dict[str, Any]]:
        """Return the part of an export's key that describes what it read.

        Args:
            declared: files that the exporter declares, which count too.
        """
        files = {}
        for name in sorted({*reads.files, *declared}):
            files[name] = self.observe("file", name)
        listings = {
            name: self.observe("listing", name, reads.made) for name in reads.listings
        }
        links = {name: self.observe("link", name) for name in reads.links}
        return {
            "files": files,
            "listings": listings,
            "links": links,
            "environment": self._environment(reads.environment),
            "modules": self._modules(reads.modules),
        }

    def _environment(self, names: Iterable[str]) -> dict[str, str | None]:
        """Return the digests of variables and, for each pattern, the names that match it."""
        values: dict[str, str | None] = {}
        for name in names:
            values[name] = self.surroundings.environment.get(name)
            if name.endswith(WHOLE_ENVIRONMENT):
                values[name] = " ".join(filter_names(self.surroundings.names(), name))
        return values

    # Modules

    def _modules(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return where each module is found outside the Python environment, [] if nowhere.

        A missing module counts because a file with its name, once it appears, is imported. Modules
        elsewhere take precedence over those of the workspace (program/workspace_modules.py).
        """
        entries = {}
        for name in names:
            modules = self._entries_of(name, self._elsewhere)
            if not modules:
                if self._is_installed(name):
                    continue
                modules = self._entries_of(name, self._own)
            entries[name] = modules
        return entries

    def _entries_of(self, name: str, folders: Iterable[str]) -> list[str]:
        return [
            self.places.spell(os.path.join(folder, entry))
            for folder in folders
            for entry in self._stems[folder].get(name, ())
        ]

    @cached_property
    def _own(self) -> list[str]:
        """The folders of the workspace that contain modules."""
        return [self._models, self.places.root]

    @cached_property
    def _elsewhere(self) -> list[str]:
        """The other folders on the module path that are outside the Python environment."""
        installed = self.places
        return list(
            dict.fromkeys(
                path
                for path in map(self._locate, self.surroundings.search)
                if path not in self._own
                and os.path.isdir(path)
                and installed.wanted(path)
                and path not in installed.installed
            )
        )

    def _locate(self, search: str) -> str:
        return os.path.normpath(os.path.join(self.places.root, search))

    @cached_property
    def _stems(self) -> dict[str, dict[str, list[str]]]:
        """The file names in each folder of modules outside the Python environment, by module."""
        return {
            folder: self._entries(folder) for folder in (*self._own, *self._elsewhere)
        }

    def _entries(self, folder: str) -> dict[str, list[str]]:
        entries: dict[str, list[str]] = {}
        suffixes = {"", *all_suffixes()}
        for name in self.places.names(folder) or ():
            stem, dot, suffix = name.partition(".")
            if dot + suffix in suffixes:
                entries.setdefault(stem, []).append(name)
        return entries

    def _is_installed(self, name: str) -> bool:
        if name not in self._installed:
            search = [
                p for p in self.surroundings.search if self._locate(p) not in self._own
            ]
            self._installed[name] = (
                name in sys.stdlib_module_names
                or self._is_loaded(name)
                or any(
                    finder.find_spec(name, search if finder is PathFinder else None)
                    is not None
                    for finder in sys.meta_path
                    if hasattr(finder, "find_spec")
                )
            )
        return self._installed[name]

    def _is_loaded(self, name: str) -> bool:
        """Return whether this process has loaded a module from a file that is still installed."""
        origin = getattr(
            getattr(sys.modules.get(name), "__spec__", None),
            "origin",
            None,
        )
        return (
            isinstance(origin, str)
            and any(within(origin, folder) for folder in self.places.installed)
            and os.path.isfile(origin)
        )


def is_inside(name: str) -> bool:
    """Return whether a path, as spelled in records, leads into the workspace."""
    path = os.path.normpath(name)
    if os.path.isabs(path) or name.startswith("~"):
        return False
    return not within(path, "..")
