"""The grammar of the command line: `doit lower vision/classify` beside doit's own `lower:vision`.

Words that follow `lower`, `validate`, `compile`, `quantize` or `export` name packages, methods or
models, and become names of tasks. A word that names nothing is an error that says what is near.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import quote

from pipeline.cli.commands import ANYWHERE, GROUPS, VERBS, Command, usage
from pipeline.plan.actions import unit_name
from pipeline.plan.export_parameters import parse_export
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.store.workspace import Workspace

_WILD = "*?["
_MOST_NAMES = 40  # that are listed as known


class Target(NamedTuple):
    """A package, and those of its methods that are meant; none are all."""

    package: str
    methods: tuple[str, ...] = ()


def quoted(name: str) -> str:
    """Quote what doit refuses in names of tasks. Packages must not be called so either, which is
    said when their turn comes."""
    return quote(name, safe="/+", errors="surrogatepass")


def describe_no_packages(workspace: Workspace) -> str:
    """Say that no config makes a package, and what would."""
    folder = workspace.configs.name
    what = "there is no folder" if not workspace.configs.is_dir() else "no config in"
    return f"no packages: {what} {folder}/; `doit init` makes an example"


def find_named(word: str, names: Collection[str], noun: str) -> list[str]:
    """Return the names that a word stands for: itself, or those that fit the pattern. Raises
    PipelineError where there is none."""
    if word in names:
        return [word]
    spelled = {quoted(name): name for name in names}  # as `doit list` shows them
    if word in spelled:
        return [spelled[word]]
    found = [name for name in names if fnmatchcase(name, word)] if _is_pattern(word) else []
    if not found:
        fits = "that fits " if _is_pattern(word) else ""
        raise PipelineError(f"no {noun} {fits}'{word}'; {did_you_mean(word, names, _MOST_NAMES)}")
    return found


def fit_packages(plan: Plan, word: str) -> list[str]:
    """Return the packages that a word stands for, none where it means something else."""
    return [name for name in plan.packages if word == name or fnmatchcase(name, word)]


def find_targets(plan: Plan, words: Iterable[str]) -> list[Target]:
    """Return what words of the form `package[/method]` stand for, by default all packages. Raises
    PipelineError for what is not there."""
    if not plan.packages:
        raise PipelineError(describe_no_packages(plan.workspace))
    targets = [target for word in words for target in _find(plan, word)]
    return list(dict.fromkeys(targets)) or [Target(package) for package in plan.packages]


def _find(plan: Plan, word: str) -> Iterator[Target]:
    name, slash, method = word.partition("/")
    found = {}
    for package in find_named(name, plan.packages, "package"):
        methods = [each for unit in plan.units(package) for each in unit]
        if not slash or not methods:  # a config with mistakes has none
            yield Target(package)
            found[package] = methods
        elif fitting := _fitting(method, methods):
            yield Target(package, tuple(fitting))
            found[package] = methods
        elif not _is_pattern(name):
            known = did_you_mean(method, methods, _MOST_NAMES)
            raise PipelineError(f"{package}: has no method '{method}'; {known}")
    if not found:
        raise PipelineError(f"no package that fits '{name}' has a method '{method}'")


def _fitting(word: str, names: Sequence[str]) -> list[str]:
    """Return the methods that a word stands for, which may be several, as compiled together."""
    parts = [word] if word in names else word.split("+")
    return [each for each in names if any(each == p or fnmatchcase(each, p) for p in parts)]


def _is_pattern(word: str) -> bool:
    return any(letter in word for letter in _WILD)


# From words to names of tasks


def rewrite(
    words: Sequence[str], plan: Callable[[], Plan], own: Collection[str], executes: bool
) -> list[str]:
    """Return a command line's words with names of tasks for what they stand for.

    Args:
        plan: returns the plan; it is asked for only where words need it.
        own: the names of the dodo file's other tasks, which no package hides.
        executes: whether tasks are executed, and not listed, say.

    Raises:
        PipelineError: a package, method or model is not there.
    """
    made: list[str] = []
    group = ""
    for number, word in enumerate(words):
        prefix, colon, rest = word.partition(":")
        if word.startswith("-"):  # what follows is a task's own
            return [*_join_validations(made), *words[number:]]
        if word in GROUPS:
            made.append(word)
            group = word
        elif colon and prefix in GROUPS:
            made += _tasks(plan(), prefix, rest)
        elif word in own or colon or word.startswith("build/"):
            made.append(word)
        elif group:
            if word not in plan().packages:
                _refuse_verb(word)
            if made[-1] == group:  # it does not stand for all of them
                made.pop()
            made += _tasks(plan(), group, word)
        elif word.partition("/")[0] in plan().packages:
            kinds = ("lower", "validate") if executes else ("lower",)
            made += [task for kind in kinds for task in _tasks(plan(), kind, word)]
        else:
            made.append(word)
    return _join_validations(made)


def _join_validations(words: Sequence[str]) -> list[str]:
    """Return words with one task for all methods of a package that are to be validated, and none
    where the whole package is: each would leave a report of its own."""
    joined: dict[str, list[str]] = {}
    for word in dict.fromkeys(words):
        task, slash, methods = word.partition("/")
        if not slash or not task.startswith("validate:"):
            joined[word] = []
        elif not {"validate", task} & {*words}:
            joined.setdefault(task, []).extend(methods.split("+"))
    return ["/".join(filter(None, (t, unit_name(dict.fromkeys(m))))) for t, m in joined.items()]


def _tasks(plan: Plan, group: str, word: str) -> list[str]:
    """Return the names of a group's tasks that a word stands for. Raises PipelineError."""
    if group == "export":
        return [f"export:{quoted(name)}" for name in _find_exports(plan, word)]
    targets = find_targets(plan, [word])
    return [task for target in targets for task in _of_target(plan, group, target)]


def _of_target(plan: Plan, group: str, target: Target) -> Iterator[str]:
    package, name = target.package, quoted(target.package)
    whole = group in ("lower", "validate") and not target.methods
    if whole or plan.problems(package):  # whose mistakes are told
        yield f"{group if group in ('lower', 'validate') else 'lower'}:{name}"
        return
    if group == "validate":
        yield f"validate:{name}/{unit_name(target.methods)}"
        return
    if group == "quantize":
        found = [each for each in plan.quantized(package) if each in (target.methods or (each,))]
        if not found:
            what = "/".join((package, "+".join(target.methods))).rstrip("/")
            raise PipelineError(f"{what}: its config quantizes nothing")
        yield from (f"quantize:{name}/{each}" for each in found)
        return
    for unit in plan.units(package):
        if not target.methods or set(unit) & set(target.methods):
            yield f"compile:{name}/{unit_name(unit)}"


def _find_exports(plan: Plan, word: str) -> list[str]:
    """Return the exports that a word names: a model, an export, or the package of one."""
    by_name = {export: [export] for export in plan.exporters}
    for export in plan.exporters:
        by_name.setdefault(parse_export(export)[0], []).append(export)
    for package in plan.packages:
        if (own := plan.exporter(package)) is not None:
            by_name.setdefault(package, [own])
    if word in plan.packages and word not in by_name:
        raise PipelineError(f"{word}: its model is an archive, so nothing is exported")
    found = find_named(word, by_name, "model")
    return list(dict.fromkeys(export for each in found for export in by_name[each]))


# Words that no task has


def check_words(words: Sequence[str], tasks: Iterable[Any], known: Iterable[str]) -> None:
    """Raise PipelineError for the first word that is no task, target or pattern that a task fits.

    Args:
        tasks: doit's.
        known: names that are suggested beside those of tasks: commands and packages.
    """
    made = {task.name: task for task in tasks}
    targets = {str(target) for task in made.values() for target in task.targets}
    if any(task.loader for task in made.values()):
        return  # whose tasks are known only later
    for word in words:
        if word.startswith("-") or (word in made and made[word].params):
            return
        if word in made or word in targets:
            continue
        if "*" in word and any(fnmatchcase(name, word) for name in made):
            continue
        _refuse_verb(word)
        groups = [name for name, task in made.items() if ":" in word or not task.subtask_of]
        own = (name for name in groups if not name.startswith("_"))
        names = dict.fromkeys([*GROUPS, *VERBS, *ANYWHERE, *own, *known])
        raise PipelineError(f"no task '{word}'; {did_you_mean(word, names, _MOST_NAMES)}")


def _refuse_verb(word: str) -> None:
    if word in VERBS or word in ANYWHERE:
        raise PipelineError(f"'{word}' is a command: it stands first, as in `doit {word}`")


def take_flags(verb: Command, words: Sequence[str]) -> tuple[list[str], dict[str, bool]]:
    """Return the words after a verb without its flags, and for each flag whether it was among them,
    by the name of its parameter. Raises PipelineError for other flags."""
    flags = {f"--{name}": name.replace("-", "_") for name in verb.options}
    names = [word for word in words if word not in flags]
    for word in names:
        if word.startswith("-"):
            hint = did_you_mean(word, flags) if flags else "it takes none"
            raise PipelineError(f"{verb.name}: no option '{word}'; {hint}; usage: {usage(verb)}")
    return names, {parameter: flag in words for flag, parameter in flags.items()}


def empty_groups(words: Sequence[str], tasks: Iterable[Any]) -> Iterator[str]:
    """Yield a line for each group that is asked for and has no task."""
    reasons: Mapping[str, str] = {
        "export": "no package is of a model whose source is a Python file",
        "quantize": "no config quantizes a method",
    }
    there = {task.subtask_of for task in tasks}
    for word in words:
        if word in reasons and word not in there:
            yield f"{word}: nothing to do: {reasons[word]}"
