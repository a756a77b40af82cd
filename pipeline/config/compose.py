"""Composes the files of a folder into one document per package, with the place of each value.

A file may extend others, set defaults for all methods, read environment variables and make several
packages through a matrix. The document of a package is plain, as if it had been written in one
file; `pipeline.config.parser` checks its meaning. Nothing is read but files of the folder and the
variables that they name. Both are recorded, so that the plan can cache the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pipeline.config.variables import Combination, Variables
from pipeline.config.yaml import Node, load_nodes, map_members, plain
from pipeline.moments import call_all
from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.errors import ConfigErrors, Problem, did_you_mean, join, shown
from pipeline.store.files import inside, read_text_file
from pipeline.store.settings import Environment
from pipeline.store.visible import one_line
from pipeline.store.workspace import CONFIG_SUFFIXES, config_files

# The keys of a file that composition consumes, in the order in which users see them.
KEYS = ("extends", "defaults", "matrix", "package")
_LONGEST_CHAIN = 64


@dataclass(frozen=True)
class Document:
    """Everything written for one package, not yet checked.

    Attributes:
        file: the file that makes the package, as shown in messages.
        root: the content; a mapping, unless the file holds something else.
        problems: mistakes found while composing; the values concerned are None.
    """

    file: str
    root: Node
    problems: tuple[Problem, ...] = ()

    @property
    def data(self) -> Any:
        return plain(self.root)

    def problem(self, path: str, fault: str, hint: str = "", at: str = "") -> Problem:
        """Make a problem for a path of the document, located where that path was written.

        `at` is the member that the problem is about, if not the whole value.
        """
        node, unwritten = self._find(at or path)
        if node.path:
            place = f"{node.path}{unwritten}"
        else:
            place = unwritten.removeprefix(".")
        if at:
            place = place.removesuffix(at.removeprefix(path)).removesuffix(".")
        if not hint and not unwritten and node.source and not node.plain:
            hint = "a quoted value is a string; write it on a line of its own, without quotes"
        return Problem(node.file, place, fault, hint, node.line)

    def written(self, path: str) -> Node | None:
        """Return the node written for a path, or None if nothing was, so that a default applies."""
        node, unwritten = self._find(path)
        if unwritten:
            return None
        return node

    def _find(
        self, path: str, node: Node | None = None, base: str = ""
    ) -> tuple[Node, str]:
        """Return the innermost node on the way to a path, and the rest of the path from there."""
        node = node or self.root
        members: Iterable[tuple[object, Node]] = ()
        if isinstance(node.value, list):
            members = enumerate(node.value)
        elif isinstance(node.value, dict):
            members = node.value.items()
        for key, inner in members:
            member = join(base, key)
            if path == member or path.startswith((f"{member}.", f"{member}[")):
                return self._find(path, inner, member)
        return node, path[len(base) :]


class Folder:
    """The configs of a folder; each file is read once.

    Attributes:
        files: the files by name without suffix.
        environment: the variables that they may read.
    """

    def __init__(self, path: Path, environment: Environment) -> None:
        """Raises PipelineError if the folder can't be read."""
        self.environment = environment
        self._root = path.parent
        self.files = config_files(path)
        self._read: dict[
            Path, tuple[Node | None, Digest | None, tuple[Problem, ...]]
        ] = {}
        self._composed: dict[Path, Composition] = {}

    def compose(self, path: Path) -> Composition:
        if path not in self._composed:
            self._composed[path] = Composition(self, path)
        return self._composed[path]

    def read(
        self, path: Path
    ) -> tuple[Node | None, Digest | None, tuple[Problem, ...]]:
        """Return the mapping of a file, the digest of its bytes, and its problems."""
        if path not in self._read:
            digest = None
            file = shown_file(path)
            try:
                content = read_text_file(inside(path, (self._root,)))
                digest = hash_bytes(content)
                root = load_nodes(content, file)
                if root is None or not isinstance(root.value, dict):
                    fault = f"is {shown(root and plain(root))}, must be a mapping"
                    raise ConfigErrors(
                        [Problem(file, "", fault, "begin with `model:`")]
                    )
                self._read[path] = root, digest, ()
            except OSError as error:
                problem = Problem(file, "", f"cannot be read: {error.strerror}")
                self._read[path] = None, None, (problem,)
            except ConfigErrors as errors:
                self._read[path] = None, digest, errors.problems
        return self._read[path]


def shown_file(path: Path) -> str:
    name = f"{path.parent.name}/{path.name}" if path.parent.name else path.name
    return one_line(name)


class Composition:
    """Composes the packages of a file.

    Attributes:
        file: the file's name as shown in messages.
        stem: its name without the suffix.
        documents: the documents, by package.
        problems: mistakes in the file or in one that it extends. A file with mistakes stands for
            the package of its own name, which has no document.
        reads: the files of the folder that were looked for, by name, with the digest of the content
            read, or None if missing.
    """

    def __init__(self, folder: Folder, path: Path) -> None:
        self.file, self.stem = shown_file(path), one_line(path.stem)
        self.reads: dict[str, Digest | None] = {}
        self._folder = folder
        self._done: set[Path] = set()
        self._variables = Variables(folder.environment)
        self.problems: list[Problem] = self._variables.problems
        chain = self._chain(path, ())
        if self.problems:
            documents = {}
        else:
            documents = self._documents(reduce(merge, chain))
        self.documents = {} if self.problems else documents

    @property
    def packages(self) -> tuple[str, ...]:
        if self.problems:
            return (self.stem,)
        return tuple(self.documents)

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of all environment variables that were looked up."""
        return tuple(sorted(self._variables.read))

    # Bases

    def _chain(self, path: Path, way: tuple[tuple[Path, Node], ...]) -> list[Node]:
        """Return the documents of a file and of all that it extends, each once, bases first.

        If a file extends several others, the order in which it names them is kept.

        Args:
            way: the files that led here, each with the name that it extends on the way.
        """
        self._done.add(path)
        root, digest, problems = self._folder.read(path)
        self.problems += problems
        self.reads[path.name] = digest
        if root is None:
            return []
        members = dict(root.value)
        chain: list[Node] = []
        for base, name in self._bases(members.pop("extends", None)):
            onward = (*way, (path, name))
            if any(base == visited for visited, _ in onward):
                self._report_circle(onward, base)
            elif len(onward) > _LONGEST_CHAIN:
                self._variables.wrong(
                    name, f"is more than {_LONGEST_CHAIN} files away", "skip some"
                )
            elif base not in self._done:
                chain += self._chain(base, onward)
        return [*chain, root.with_value(members)]

    def _report_circle(self, way: tuple[tuple[Path, Node], ...], base: Path) -> None:
        """Report the same problem for a cycle, whichever of its files was read first."""
        circle = list(way[[path for path, _ in way].index(base) :])
        first = circle.index(min(circle, key=lambda step: step[0].name))
        circle = circle[first:] + circle[:first]
        stems = " -> ".join(path.stem for path, _ in [*circle, circle[0]])
        self._variables.wrong(
            circle[0][1],
            f"is circular: {stems}",
            "remove one of them",
        )

    def _bases(self, extends: Node | None) -> Iterator[tuple[Path, Node]]:
        """Yield the files that a file extends, with the nodes that name them."""
        wrong = self._variables.wrong
        if extends is None:
            return
        items = extends.value if isinstance(extends.value, list) else [extends]
        are_names = all(
            not isinstance(item.value, list | dict | None) for item in items
        )
        if not items or not are_names:
            self._variables.must(extends, "be the name of a config or a list of names")
            return
        for item in items:
            name = self._variables.fill(item, typed=False).value
            if name is None:
                continue
            paths = self._folder.files.get(name, [])
            # Also recorded if missing: the config changes as soon as the file appears.
            for suffix in CONFIG_SUFFIXES:
                self.reads.setdefault(f"{name}{suffix}", None)
            if len(paths) == 1:
                yield paths[0], item
            elif paths:
                files = " and ".join(shown_file(path) for path in paths)
                wrong(item, f"'{name}' is both {files}", "keep one")
            else:
                # The same words in every config that extends it, so that they are reported once.
                hint = did_you_mean(str(name), self._folder.files, impossible=self.stem)
                wrong(item, f"no config {shown(name)}", hint)

    # Packages

    def _documents(self, root: Node) -> dict[str, Document]:
        members = dict(root.value)
        matrix = _there(members.pop("matrix", None))
        template = _there(members.pop("package", None))
        root = root.with_value(members)
        if matrix is None:
            if template is not None:
                fault = "names the packages of a matrix, but the config has no matrix"
                self._variables.wrong(template, fault, "name the file")
            return {
                self.stem: self._document(root, self._variables.for_package(None), [])
            }
        documents = {}
        combinations = self._combinations(matrix, template, root)
        for name, (axes, parts) in combinations.items():
            variables = self._variables.for_package(axes)
            documents[name] = self._document(root, variables, parts)
        return documents

    def _combinations(
        self, matrix: Node, template: Node | None, root: Node
    ) -> dict[str, Combination]:
        """Return the combinations of a matrix, by package name."""
        combinations: dict[str, Combination] | None = next(
            call_all(
                "expand_matrix", matrix, self._variables, self.stem, template, root
            ),
            None,
        )
        if combinations is None:
            fault = 'this installation has no feature "matrix"'
            self._variables.wrong(matrix, fault, "leave the key out")
            return {}
        return combinations

    def _document(
        self, root: Node, variables: Variables, parts: Iterable[Node]
    ) -> Document:
        root = reduce(merge, parts, root)
        root = _filled(_with_defaults(root, variables), variables.fill)
        root = variables.check_secrets(root)
        return Document(self.file, root, tuple(variables.problems))


def _there(node: Node | None) -> Node | None:
    if node is not None and node.takes:
        return None
    return node


# Merging


def merge(below: Node | None, above: Node) -> Node:
    """Merge a document over another: mappings by member, anything else as in `above`.

    An empty value removes the value below it.
    """
    if below is None:
        return above
    if above.value is None:
        return above.with_value(None, takes=below.takes or below.value is not None)
    if not (isinstance(below.value, dict) and isinstance(above.value, dict)):
        return above
    members = dict(below.value)
    for key, node in above.value.items():
        members[key] = merge(members.get(key), node)
    return above.with_value(members)


def _with_defaults(root: Node, variables: Variables) -> Node:
    """Merge each method over the defaults."""
    members = dict(root.value)
    defaults = _there(members.pop("defaults", None))
    methods = members.get("methods")
    if defaults is not None and not isinstance(defaults.value, dict):
        variables.must(defaults, "be a mapping", "write settings for every method")
    elif (
        defaults is not None and methods is not None and isinstance(methods.value, dict)
    ):
        laid = dict(methods.value)
        for name, method in methods.value.items():
            if isinstance(method.value, dict):
                laid[name] = merge(defaults, method)
            elif method.value is None and not method.takes:
                variables.wrong(method, "is empty", "write `{}` to use the defaults")
        members["methods"] = methods.with_value(laid)
    return root.with_value(members)


def _filled(root: Node, fill: Callable[[Node], Node]) -> Node:
    """Drop removed values, and fill in the variables of all strings."""
    # Keyed by identity: a node that YAML aliases repeat is copied once.
    copies: dict[int, Any] = {}

    def copy(node: Node) -> Node:
        if not isinstance(node.value, dict | list):
            return fill(node)
        return node.with_value(map_members(node.value, copy, copies))

    return copy(root)
