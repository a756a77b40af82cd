"""The alternatives of a package's space, and the config that each combination of them makes.

An alternative takes its place in the file that makes the package, before bases, defaults and the
matrix are composed, so a trial is the package that would result if the file contained it. Each
value keeps its line in the section `tune`, where its mistakes are then reported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.compose import Document, Folder
from pipeline.config.fields import NEEDS_BASELINE
from pipeline.config.parser import parse_document
from pipeline.config.secrets import Secret
from pipeline.config.validation import Gates
from pipeline.config.yaml import Node, dump_flow, plain
from pipeline.features.tuning.figures import ON_DEVICE, split_limit
from pipeline.store.digest import Digest
from pipeline.store.errors import ConfigErrors, Problem, did_you_mean
from pipeline.store.settings import Environment
from pipeline.store.workspace import Workspace

# For each axis, the index of an alternative.
Choice = tuple[int, ...]
_ROOTS = ("methods", "defaults", "emit")
_MOST_TRIED = 64  # combinations checked for one in which an alternative is valid
# Not part of a trial: its own section, and weights that it would share with other packages.
_LEFT_OUT = ("tune", "family")


class Space:
    """The alternatives of a package.

    Attributes:
        workspace: the workspace whose config makes the package.
        package: its name.
        path: the file that makes it.
        root: the contents of that file.
        axes: for the path of each setting, its alternatives as they were written.
    """

    def __init__(self, workspace: Workspace, package: str, document: Document) -> None:
        """Read the section `tune` of a package's document. Raises ConfigErrors."""
        self.workspace = workspace
        self.package = package
        self.path = workspace.configs / Path(document.file).name
        folder = Folder(workspace.configs, workspace.environment)
        root, _, problems = folder.read(self.path)
        if root is None:
            raise ConfigErrors(problems)
        self.root = root
        section = document.root.value["tune"].value["space"].value
        self.axes: Mapping[str, Sequence[Node]] = {
            name: tuple(map(restore_variables, node.value))
            for name, node in section.items()
        }

    @property
    def size(self) -> int:
        """The number of all combinations."""
        return math.prod(map(len, self.axes.values()))

    def list_choices(self) -> Iterator[Choice]:
        """Yield all combinations, with the last axis varying fastest."""
        return itertools.product(*(range(len(nodes)) for nodes in self.axes.values()))

    def describe(self, choice: Choice) -> dict[str, str]:
        """Return the alternative of each axis as YAML on one line."""
        words = {}
        for (name, nodes), number in zip(self.axes.items(), choice, strict=True):
            words[name] = dump_flow(plain(nodes[number]))
        return words

    def select(self, choice: Choice) -> dict[str, Node]:
        """Return the alternative of each axis."""
        pairs = zip(self.axes.items(), choice, strict=True)
        return {name: nodes[number] for (name, nodes), number in pairs}


class EditedFolder(Folder):
    """A folder of configs in which the contents of one file differ from those on disk."""

    def __init__(
        self, configs: Path, environment: Environment, edited: Path, root: Node
    ) -> None:
        super().__init__(configs, environment)
        self._edited = edited
        self._root_node = root

    def read(
        self, path: Path
    ) -> tuple[Node | None, Digest | None, tuple[Problem, ...]]:
        if path == self._edited:
            return self._root_node, None, ()
        return super().read(path)


def compose_choice(space: Space, choice: Choice | None) -> Document:
    """Return the document of a package with the alternatives of `choice` in place.

    With None, it is the present document. Raises ConfigErrors.
    """
    root = space.root
    if choice is not None:
        for name, node in space.select(choice).items():
            root = put_node(root, name.split("."), leave_out_empty(node))
    return compose_root(space, root)


def compose_root(space: Space, root: Node) -> Document:
    """Return the document of a package whose file holds `root`. Raises ConfigErrors."""
    workspace = space.workspace
    folder = EditedFolder(workspace.configs, workspace.environment, space.path, root)
    composition = folder.compose(space.path)
    document = composition.documents.get(space.package)
    if document is None:
        raise ConfigErrors(composition.problems)
    return document


def restore_variables(node: Node) -> Node:
    """Return a node with its strings as they were written, before variables were substituted.

    Composing a trial substitutes them.
    """
    if node.source:
        return node.with_value(node.source, node.plain)
    members = node.value
    if isinstance(members, dict):
        members = {key: restore_variables(member) for key, member in members.items()}
    elif isinstance(members, list):
        members = list(map(restore_variables, members))
    return node.with_value(members, node.plain, node.takes)


def leave_out_empty(node: Node) -> Node:
    """Return an alternative; an empty one removes the inherited value, if there is one."""
    if node.value is None:
        return node.with_value(None, takes=True)
    return node


def put_node(root: Node, keys: Sequence[str], node: Node) -> Node:
    """Return a mapping with a node placed at a path of keys."""
    if not keys:
        return node
    members = dict(root.value) if isinstance(root.value, dict) else {}
    key, *inner_keys = keys
    below = members.get(key, root.with_value({}))
    members[key] = put_node(below, inner_keys, node)
    return root.with_value(members)


def make_trial_data(document: Document) -> dict[str, Any]:
    """Return the data of a trial's config: the package as one file, with nothing to compose.

    Gates on growth are left out: a trial is another package, and has no baseline.
    """
    members = {
        key: node for key, node in document.root.value.items() if key not in _LEFT_OUT
    }
    data: dict[str, Any] = _write_plain(document.root.with_value(members))
    validation = data.get("validate", {})
    for section in (validation, *validation.get("methods", {}).values()):
        gates = section.get("gates", {})
        for name, field in Gates.model_fields.items():
            if NEEDS_BASELINE in field.metadata or name == "max_family_size":
                gates.pop(name, None)
    return data


def _write_plain(node: Node) -> Any:
    """Return the data of a node such that composing it again gives the same values.

    Dollar signs are doubled, and secrets replaced by the names of their variables.
    """
    if isinstance(node.value, dict):
        return {key: _write_plain(member) for key, member in node.value.items()}
    if isinstance(node.value, list):
        return [_write_plain(member) for member in node.value]
    if isinstance(node.value, Secret):
        return f"${{{node.value.name}}}"
    if isinstance(node.value, str):
        return node.value.replace("$", "$$")
    return node.value


# Mistakes in a space


def find_space_problems(
    workspace: Workspace, package: str, document: Document, methods: Sequence[str]
) -> Iterator[Problem]:
    """Yield the mistakes in paths and alternatives, each with its line in the section `tune`."""
    nodes = document.root.value["tune"].value["space"].value
    problems = []
    for name in nodes:
        problem = _find_path_problem(name, nodes, methods)
        if problem is not None:
            problems.append(problem)
    yield from problems
    if problems:
        return
    space = Space(workspace, package, document)
    for name, alternatives in space.axes.items():
        for number, node in enumerate(alternatives):
            values = [plain(earlier) for earlier in alternatives[:number]]
            if plain(node) in values:
                # The same package would be tried under two numbers.
                yield node.problem("occurs twice", "keep one")
            else:
                yield from _find_alternative_problems(space, name, number)


def find_figure_problems(
    document: Document, devices: Sequence[str], metrics: Sequence[str]
) -> Iterator[Problem]:
    """Yield a problem for each objective and limit that no validation measures.

    Args:
        devices: the devices that the package is validated on.
        metrics: the entries of `validate.metrics`.
    """
    section = document.root.value["tune"].value
    for key in ("objectives", "limits"):
        node = section.get(key)
        for name, member in node.value.items() if node is not None else ():
            figure = split_limit(name)[1] if key == "limits" else name
            problem = _find_figure_problem(member, figure, devices, metrics)
            if problem is not None:
                yield problem


def _find_figure_problem(
    node: Node, figure: str, devices: Sequence[str], metrics: Sequence[str]
) -> Problem | None:
    """Return the problem of a figure that the validation doesn't measure, or None."""
    kind, _, name = figure.partition(".")
    if kind == "energy":
        hint = "use latency_p95.<device> or peak_memory.<device>"
        return node.problem("no device measures energy", hint)
    if kind in ON_DEVICE and name and name not in devices:
        hint = f"write `validate: {{devices: [{name}]}}`"
        return node.problem(f"no validation runs on a device '{name}'", hint)
    measured = any(f"{name}.".startswith(f"{entry}.") for entry in metrics)
    if kind == "metrics" and not measured:
        hint = f"write `validate: {{metrics: {{{name}: {{}}}}}}`"
        if metrics:
            hint = did_you_mean(name, metrics)
        return node.problem(f"no validation measures a metric '{name}'", hint)
    return None


def _find_path_problem(
    name: str, nodes: Mapping[str, Node], methods: Sequence[str]
) -> Problem | None:
    """Return the problem of the path of an axis, or None."""
    node = nodes[name]
    root, *keys = name.split(".")
    if root not in _ROOTS or not all(keys) or not keys:
        hint = "write methods.<method>.<key>, defaults.<key> or emit.<key>"
        return node.problem("is not the path of a tunable setting", hint)
    if root == "methods" and keys[0] not in methods:
        hint = did_you_mean(keys[0], methods)
        return node.problem(f"there is no method '{keys[0]}'", hint)
    if root == "methods" and len(keys) == 1:
        hint = f"write {name}.quantize or another key of it"
        return node.problem("is a whole method", hint)
    for other in nodes:
        if other.startswith(f"{name}."):
            fault = f"contains '{other}', which also has alternatives"
            return node.problem(fault, "keep one of them")
    return None


def _find_alternative_problems(
    space: Space, name: str, number: int
) -> Iterator[Problem]:
    """Yield the problems of an alternative that is a mistake in every combination checked."""
    first_problems: Sequence[Problem] = ()
    place = list(space.axes).index(name)
    fitting = (choice for choice in space.list_choices() if choice[place] == number)
    for choice in itertools.islice(fitting, _MOST_TRIED):
        problems = find_choice_problems(space, choice)
        if not problems:
            return
        first_problems = first_problems or problems
    yield from first_problems


def find_choice_problems(space: Space, choice: Choice) -> tuple[Problem, ...]:
    """Return the problems that the parser of configs finds in a combination."""
    try:
        parse_document(space.package, compose_choice(space, choice))
    except ConfigErrors as errors:
        return errors.problems
    return ()
