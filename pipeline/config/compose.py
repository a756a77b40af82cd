"""From the files of a folder to one document for each package, and where each value was written.

A file may extend others, give defaults for all methods, read variables of the environment and make
several packages through a matrix. What comes out is a plain document for each package, spelled as
if it had been written in one file; whether that makes sense, `pipeline.config.parser` says. Nothing
is read but files of the folder and the variables that they name, and both are told, so that the
plan can remember what came out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.matrix import combinations, names
from pipeline.config.variables import Variables
from pipeline.config.yaml import Mark, Node, load_nodes, plain
from pipeline.store.digest import Digest, of_bytes
from pipeline.store.errors import ConfigErrors, Problem, did_you_mean, join, shown
from pipeline.store.workspace import CONFIG_SUFFIXES, config_files, makes_packages

# The keys of a file that are used up here, in the order in which people read of them.
KEYS = ("extends", "defaults", "matrix", "package")


@dataclass(frozen=True)
class Document:
    """What one package is asked for, before anybody looked whether it makes sense.

    Attributes:
        file: what messages call the file that makes the package.
        root: all that was written for it; a mapping, unless the file holds something else.
        problems: what composing it found; the values concerned are None.
    """

    file: str
    root: Node
    problems: tuple[Problem, ...] = ()

    @property
    def data(self) -> Any:
        return plain(self.root)

    def problem(self, path: str, what: str, known: str = "", at: str = "") -> Problem:
        """What is wrong at a path of the document, told of the place where that was written; `at`
        is the member that it is about, where that is not the whole value."""
        node, rest = self._find(at or path)
        mark = node.mark
        place = f"{mark.path}{rest}" if mark.path else rest.removeprefix(".")
        if at:
            place = place.removesuffix(at.removeprefix(path)).removesuffix(".")
        if not known and not rest and node.source and not node.plain:
            known = "a value in quotes is text; write it on a line of its own, without them"
        return Problem(mark.file, place, what, known, mark.line)

    def written(self, path: str) -> Node | None:
        """What was written for a path; None where nothing was, and a default holds."""
        node, rest = self._find(path)
        return None if rest else node

    def _find(self, path: str) -> tuple[Node, str]:
        """The innermost node on the way to a path, and what is left of the path there."""
        node, here = self.root, ""
        while True:
            step = next(
                (
                    (inner, name)
                    for key, inner in _members(node.value)
                    for name in [join(here, key)]
                    if path == name or path.startswith((f"{name}.", f"{name}["))
                ),
                None,
            )
            if step is None:
                return node, path[len(here) :]
            node, here = step


def _members(value: Any) -> Iterable[tuple[Any, Node]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


@dataclass(frozen=True)
class Composition:
    """What a file asks for.

    Attributes:
        file: what messages call it.
        stem: its name without the suffix.
        documents: by package.
        problems: what is wrong with the file or with one that it extends. Such a file stands for
            the package of its own name, of which there is no document.
        reads: the files of the folder that were looked for, by name, with the digest of what was
            read, or None for one that is not there.
        variables: the names of the variables of the environment that were asked for.
    """

    file: str
    stem: str
    documents: dict[str, Document]
    problems: tuple[Problem, ...]
    reads: dict[str, Digest | None]
    variables: tuple[str, ...]

    @property
    def packages(self) -> tuple[str, ...]:
        return (self.stem,) if self.problems else tuple(self.documents)


class Folder:
    """The configs of a folder; each file is read once. `environment` are its variables."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        """Raises PipelineError for a folder that cannot be read."""
        self._environment = environment
        self._files = config_files(path)
        self._read: dict[Path, tuple[Node | None, Digest | None, tuple[Problem, ...]]] = {}
        self._composed: dict[Path, Composition] = {}

    @property
    def paths(self) -> list[Path]:
        """The files that make packages."""
        return [
            path for stem, paths in self._files.items() if makes_packages(stem) for path in paths
        ]

    def compose(self, path: Path) -> Composition:
        if path not in self._composed:
            self._composed[path] = _Composer(self, path, self._environment).composition()
        return self._composed[path]

    def named(self, stem: str) -> list[Path]:
        return self._files.get(stem, [])

    @property
    def stems(self) -> list[str]:
        return list(self._files)

    def read(self, path: Path) -> tuple[Node | None, Digest | None, tuple[Problem, ...]]:
        """What a file holds, a mapping; the digest of its bytes, and what is wrong with it."""
        if path not in self._read:
            content, file = None, shown_file(path)
            try:
                content = _bytes(path, file)
                root = _mapping(load_nodes(content, file), file)
                self._read[path] = root, of_bytes(content), ()
            except ConfigErrors as errors:
                digest = None if content is None else of_bytes(content)
                self._read[path] = None, digest, errors.problems
        return self._read[path]


def shown_file(path: Path) -> str:
    name = f"{path.parent.name}/{path.name}" if path.parent.name else path.name
    return name if name.isprintable() else ascii(name)


def _bytes(path: Path, file: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigErrors([Problem(file, "", f"cannot be read: {error.strerror}")]) from error


def _mapping(root: Node | None, file: str) -> Node:
    if root is not None and isinstance(root.value, dict):
        return root
    value = None if root is None else root.value
    what = f"is {shown(value)}, must be a mapping"
    raise ConfigErrors([Problem(file, "", what, "begin with `model:`")])


class _Composer:
    """Composes one file; what is found on the way is kept here."""

    def __init__(self, folder: Folder, path: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._path = path
        self._file = shown_file(path)
        self._variables = Variables(environment)
        self._problems: list[Problem] = self._variables.problems
        self._reads: dict[str, Digest | None] = {}
        self._done: set[Path] = set()

    def composition(self) -> Composition:
        chain = self._chain(self._path, ())
        documents: dict[str, Document] = {}
        if not self._problems:
            root = chain[0]
            for each in chain[1:]:
                root = merge(root, each)
            documents = self._documents(root)
        if self._problems:
            documents = {}
        return Composition(
            file=self._file,
            stem=self._path.stem,
            documents=documents,
            problems=tuple(self._problems),
            reads=self._reads,
            variables=tuple(sorted(self._variables.read)),
        )

    # Bases

    def _chain(self, path: Path, way: tuple[tuple[Path, Mark], ...]) -> list[Node]:
        """The documents of a file and of all that it extends: each once, bases before what extends
        them, earlier bases before later ones. `way` are the files that led here, with the marks of
        what they extend on it."""
        self._done.add(path)
        root, digest, problems = self._folder.read(path)
        self._problems += problems
        self._reads[path.name] = digest
        if root is None:
            return []
        members = dict(root.value)
        extends = members.pop("extends", None)
        chain: list[Node] = []
        for base, mark in self._bases(extends):
            onward = (*way, (path, mark))
            if any(base == each for each, _ in onward):
                self._problems.append(_circle(onward, base))
            elif base not in self._done:
                chain += self._chain(base, onward)
        return [*chain, Node(members, root.mark)]

    def _bases(self, extends: Node | None) -> list[tuple[Path, Mark]]:
        if extends is None:
            return []
        items = extends.value if isinstance(extends.value, list) else [extends]
        if not items or any(isinstance(item.value, list | dict | None) for item in items):
            what = f"is {shown(plain(extends))}, must be the name of a config or a list of names"
            self._problems.append(extends.mark.problem(what))
            return []
        return [base for item in items for base in self._base(item)]

    def _base(self, item: Node) -> list[tuple[Path, Mark]]:
        before = len(self._problems)
        name = self._variables.fill(Node(item.value, item.mark)).value
        if len(self._problems) > before:
            return []
        paths = self._folder.named(name) if isinstance(name, str) else []
        for suffix in CONFIG_SUFFIXES:
            self._reads.setdefault(f"{name}{suffix}", None)
        if len(paths) > 1:
            files = " and ".join(shown_file(path) for path in paths)
            self._problems.append(item.mark.problem(f"'{name}' is both {files}", "keep one"))
        elif not paths:
            others = [stem for stem in self._folder.stems if stem != self._path.stem]
            self._problems.append(
                item.mark.problem(f"no config {shown(name)}", did_you_mean(str(name), others))
            )
        return [(path, item.mark) for path in paths[:1]] if len(paths) == 1 else []

    # Packages

    def _documents(self, root: Node) -> dict[str, Document]:
        members = dict(root.value)
        matrix, template = _there(members.pop("matrix", None)), _there(members.pop("package", None))
        root = Node(members, root.mark)
        if matrix is None:
            if template is not None:
                what = "names the packages of a matrix, and there is none"
                self._problems.append(template.mark.problem(what, "name the file"))
            return {self._path.stem: self._document(root, self._variables.of(None), [])}
        found = combinations(matrix, self._variables)
        if self._problems:
            return {}
        named = names(found, self._path.stem, matrix.mark, template, self._variables)
        return {
            name: self._document(root, self._variables.of(each.values), each.parts)
            for name, each in named.items()
        }

    def _document(self, root: Node, variables: Variables, parts: Iterable[Node]) -> Document:
        for part in parts:
            root = merge(root, part)
        root = _with_defaults(root, variables.problems)
        root = _filled(root, variables.fill)
        return Document(self._file, root, tuple(variables.problems))


def _circle(way: tuple[tuple[Path, Mark], ...], base: Path) -> Problem:
    """The same problem whichever file of the circle one began with."""
    circle = list(way[[path for path, _ in way].index(base) :])
    first = circle.index(min(circle, key=lambda each: each[0].name))
    circle = circle[first:] + circle[:first]
    stems = [path.stem for path, _ in [*circle, circle[0]]]
    what = f"goes in a circle: {' -> '.join(stems)}"
    return circle[0][1].problem(what, "take one out")


def _there(node: Node | None) -> Node | None:
    return None if node is not None and node.takes else node


# Merging


def merge(below: Node | None, above: Node) -> Node:
    """What holds where one document stands on another: mappings member by member, anything else
    as it stands above. An empty value takes away what is below it."""
    if below is None:
        return above
    if above.value is None:
        return Node(None, above.mark, takes=below.takes or below.value is not None)
    if not (isinstance(below.value, dict) and isinstance(above.value, dict)):
        return above
    members = dict(below.value)
    for key, node in above.value.items():
        members[key] = merge(members.get(key), node)
    return Node(members, above.mark)


def _with_defaults(root: Node, problems: list[Problem]) -> Node:
    """Lays the methods on the defaults."""
    members = dict(root.value)
    defaults = _there(members.pop("defaults", None))
    methods = members.get("methods")
    if defaults is not None and not isinstance(defaults.value, dict):
        what = f"is {shown(plain(defaults))}, must be a mapping"
        problems.append(defaults.mark.problem(what, "write what holds for every method"))
    elif defaults is not None and methods is not None and isinstance(methods.value, dict):
        laid = {
            name: merge(defaults, method) if isinstance(method.value, dict) else method
            for name, method in methods.value.items()
        }
        members["methods"] = Node(laid, methods.mark)
        problems += [
            method.mark.problem("is empty", "write `{}` for what the defaults say")
            for method in methods.value.values()
            if method.value is None and not method.takes
        ]
    return Node(members, root.mark)


def _filled(root: Node, fill: Callable[[Node], Node]) -> Node:
    """Without what was taken away, and with the variables of all texts filled in. What several
    places hold in common, they still do."""
    made: dict[int, Any] = {}

    def node_of(node: Node) -> Node:
        if not isinstance(node.value, dict | list):
            return fill(node)
        if id(node.value) not in made:
            made[id(node.value)] = (
                {key: node_of(each) for key, each in node.value.items() if not each.takes}
                if isinstance(node.value, dict)
                else [node_of(each) for each in node.value]
            )
        return Node(made[id(node.value)], node.mark)

    return node_of(root)
