"""The log of what user code touches, whichever view records it.

It records files as they were when first seen, and everything else that a later run could find
changed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

from pipeline.plan.places import Kind, within
from pipeline.run.isolated import ForkWatch

Value = str | None
Wanted = Callable[[str], bool]
Observe = Callable[[Kind, str], Value]


class FileAccessLog(ForkWatch):
    """Records what a child process touches. Its creator decides what counts, and what a value is.

    Attributes:
        view: "kernel" if system calls were seen, including those of processes that the child
            started; "audit" if Python's audit events were, which native code and other processes
            don't raise.
        seen: the values at first sight, by kind and absolute path, which is neither resolved nor
            freed of "..".
            `file`: opened, mapped, executed, or asked for; its content, FOLDER, or None if absent.
            `listing`: a folder whose names were listed.
            `link`: the target of a symbolic link, or None if the path isn't one.
        written: the paths that the child made, changed, renamed or removed.
        environment: the environment variables that were read, None for one that is not set; all
            variables if they were iterated over.
        readers: the files of the code that asked for a variable by its name.
        processes: the programs that were started.
        unfollowed: phrases for what can't be followed, such as "the network (10.0.0.1:80)".
        modules: the files of the modules that the child imported, by name.
    """

    def __init__(self, wanted: Wanted, observe: Observe) -> None:
        """Make an empty log.

        Args:
            wanted: returns whether a path counts. Must not raise OSError.
            observe: returns the present value of a path of some kind. Must not raise OSError.
        """
        super().__init__()
        self._wanted = wanted
        self._observe = observe
        self.view: Literal["", "kernel", "audit"] = ""
        self.seen: dict[tuple[Kind, str], Value] = {}
        self.written: set[str] = set()
        self.environment: dict[str, str | None] = {}
        self.readers: dict[str, list[str]] = {}
        self.processes: list[str] = []
        self.unfollowed: list[str] = []
        self._skipped: set[str] = set()
        self._own: set[str] = set()  # as `written`, with their folders resolved
        self._has_links = False  # whether these include links
        # The values of what the child changed before looking at it: its inputs if it looks later.
        self._before: dict[tuple[Kind, str], Value] = {}

    # What the child does

    def look(self, path: str, follow: bool = True) -> None:
        """Record that the child opens a file to read it, or asks for it."""
        if not follow and os.path.islink(path):
            self._touch("link", path)
        else:
            self._touch("file", path)
            if not follow:
                self._touch("link", path)

    def list(self, path: str) -> None:
        self._touch("listing", path)

    def read_link(self, path: str) -> None:
        self._touch("link", path)

    def open_to_write(self, path: str, flags: int) -> None:
        exists = os.path.lexists(path)
        readable = flags & os.O_ACCMODE == os.O_RDWR
        if (exists and flags & os.O_EXCL) or not _can_write(
            path, exists, flags & os.O_CREAT
        ):
            self.look(path)  # opening it fails
            return
        # No other run asks for the name of a temporary file.
        is_temporary = (
            flags & os.O_EXCL and os.path.dirname(path) == tempfile.gettempdir()
        )
        asks = flags & os.O_EXCL or (readable and not flags & os.O_TRUNC)
        if asks and not is_temporary:
            self.look(path)
        elif exists and not flags & os.O_TRUNC:
            self._keep("file", path)
        if not (exists and readable and not flags & os.O_TRUNC):
            self._make(path)

    def create(self, path: str) -> None:
        """Record that the child makes a folder, a link or the like, unless the name is taken."""
        exists = os.path.lexists(path)
        self.look(path, follow=False)
        if not exists:
            self._make(path)

    def link(self, path: str) -> None:
        """Record that the child makes a symbolic link.

        Through the link, the child may look at files that it didn't make.
        """
        self.create(path)
        self._has_links = True

    def remove(self, path: str) -> None:
        self.look(path, follow=False)
        if os.path.lexists(path):
            self._make(path)

    def rename(self, old: str, new: str) -> None:
        if os.path.isdir(old) and not self._is_own(_resolve(old, follow=False)):
            self.unfollow(f"a folder that is renamed ({old})")
        self._has_links |= os.path.islink(old)
        self.remove(old)
        self._make(new)

    def change(self, path: str) -> None:
        """Record that the child changes an existing file."""
        self._keep("file", path)
        self._make(path)

    def start(self, program: str) -> None:
        self.look(program)
        if os.path.exists(program) and program not in self.processes:
            self.processes.append(program)

    def unfollow(self, cause: str) -> None:
        if cause not in self.unfollowed:
            self.unfollowed.append(cause)

    # How the records are kept

    def _touch(self, kind: Kind, path: str) -> None:
        key = kind, path
        if self._is_scratch(path) and not self._has_links:
            return
        if path in self._skipped or (key in self.seen and not self._has_links):
            return
        if not self._wanted(os.path.realpath(path) if "/.." in path else path):
            self._skipped.add(path)
            return
        if self._own:
            real = _resolve(path, kind != "link")
            if self._is_own(real):
                if (kind, real) in self._before:
                    self.seen.setdefault(key, self._before.pop((kind, real)))
                return
            if self._has_links and self._passes_own(
                path
            ):  # which the next run will not find
                key = kind, real
        if key not in self.seen:
            before = self._before.pop((kind, real), None) if self._own else None
            self.seen[key] = before or self._observe(*key)

    def _keep(self, kind: Kind, path: str) -> None:
        """Keep a value that the child is about to change."""
        real = _resolve(path)
        if self._wanted(real) and not self._is_own(real):
            self._before.setdefault((kind, real), self._observe(kind, real))

    def _make(self, path: str) -> None:
        real = _resolve(path, follow=False)
        if real not in self._own:
            folder = os.path.dirname(path)
            if ("listing", folder) not in self.seen:
                self._keep("listing", folder)
            self._own.add(real)
        self.written.add(path)

    def is_own(self, path: str) -> bool:
        """Return whether the child made a file, or a folder that contains it."""
        return self._is_own(_resolve(path))

    def _is_own(self, real: str) -> bool:
        return self._is_scratch(real) or (
            bool(self._own)
            and any(parent in self._own for parent in _with_parents(real))
        )

    def _is_scratch(self, path: str) -> bool:
        return bool(self.scratch) and within(path, self.scratch)

    def _passes_own(self, path: str) -> bool:
        return any(
            _resolve(parent, follow=False) in self._own
            for parent in _with_parents(path)
        )

    def find_variables(
        self, files: Collection[str], strings: Collection[str]
    ) -> set[str]:
        """Return the variables that code in some files read, directly or through a library.

        Libraries also read variables of their own, so a library's reads count only for variables
        that the code names: those among its `strings`.
        """
        direct = {
            name
            for name, reading_files in self.readers.items()
            if not set(files).isdisjoint(reading_files)
        }
        return direct | (self.environment.keys() & strings)

    # Between processes

    def to_json(self) -> dict[str, Any]:
        facts = {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_")
        }
        observed = [[*key, value] for key, value in self.seen.items()]
        return {**facts, "seen": observed, "written": sorted(self.written)}

    def add(self, facts: Mapping[str, Any]) -> None:
        super().add(facts)
        self.view = facts["view"]
        self.seen |= {(kind, path): value for kind, path, value in facts["seen"]}
        self.written |= set(facts["written"])
        self.environment |= facts["environment"]
        self.readers |= facts["readers"]
        self.processes += [
            process for process in facts["processes"] if process not in self.processes
        ]
        for cause in facts["unfollowed"]:
            self.unfollow(cause)


def _can_write(path: str, exists: bool, creates: int) -> bool:
    if exists:
        return os.access(path, os.W_OK)
    return bool(creates) and os.access(os.path.dirname(path), os.W_OK)


def _resolve(path: str, follow: bool = True) -> str:
    if follow:
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _with_parents(path: str) -> Iterator[str]:
    while True:
        yield path
        parent = os.path.dirname(path)
        if parent == path:
            return
        path = parent


def loaded_files() -> set[str]:
    """Return the files of the modules that this process has loaded.

    `inspect.getmodule`, which torch calls to name the source of a function, asks for every one of
    them.
    """
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {os.path.abspath(file) for file in files if isinstance(file, str)}
