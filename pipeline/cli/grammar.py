"""The grammar of the command line: `doit lower vision/classify` as well as doit's `lower:vision`.

Words after `lower`, `validate`, `compile`, `quantize` or `export` name packages, methods or models,
and are rewritten to names of tasks. An unknown word is an error that suggests similar names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import quote

from pipeline.cli.commands import ANYWHERE, GROUPS, VERBS, Command, usage
from pipeline.plan.actions import unit_name
from pipeline.plan.export_parameters import parse_export
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.store.workspace import Workspace

_WILD = "*?["
_MOST_NAMES = 40  # to list as known


class Target(NamedTuple):
    """A package and its selected methods; an empty tuple selects all."""

    package: str
    methods: tuple[str, ...] = ()


def quoted(name: str) -> str:
    """Quote the characters that doit refuses in task names.

    Package names with such characters are invalid too, which is reported when their turn comes.
    """
    return quote(name, safe="/+", errors="surrogatepass")


def describe_no_packages(workspace: Workspace) -> str:
    """Return an error message that no config makes a package, and how to get one."""
    folder = workspace.configs.name
    lack = "there is no folder"
    if workspace.configs.is_dir():
        lack = "no config in"
    return f"no packages: {lack} {folder}/; `doit init` creates an example"


def find_named(word: str, names: Collection[str], noun: str) -> list[str]:
    """Return the names that a word stands for: itself, or those that match the pattern.

    Raises PipelineError if there is none.
    """
    if word in names:
        return [word]
    for name in names:
        if word == quoted(name):  # as `doit list` shows it
            return [name]
    fitting = [name for name in names if is_pattern(word) and fnmatchcase(name, word)]
    if not fitting:
        fits = "that matches " if is_pattern(word) else ""
        hint = did_you_mean(word, names, _MOST_NAMES)
        raise PipelineError(f"no {noun} {fits}'{word}'; {hint}")
    return fitting


def find_targets(plan: Plan, words: Iterable[str]) -> list[Target]:
    """Return the targets that words of the form `package[/method]` select, by default all packages.

    Raises PipelineError for unknown names.
    """
    if not plan.packages:
        raise PipelineError(describe_no_packages(plan.workspace))
    targets: dict[Target, None] = {}
    for word in words:
        targets |= dict.fromkeys(_find_targets_of(plan, word))
    return list(targets) or [Target(package) for package in plan.packages]


def _find_targets_of(plan: Plan, word: str) -> list[Target]:
    """Return the targets that one word selects."""
    name, slash, pattern = word.partition("/")
    targets = []
    for package in find_named(name, plan.packages, "package"):
        methods = list(chain.from_iterable(plan.units(package)))
        fitting = _fitting_methods(pattern, methods)
        if not slash or not methods:  # a config with mistakes has no methods
            targets.append(Target(package))
        elif fitting:
            targets.append(Target(package, tuple(fitting)))
        elif not is_pattern(name):
            hint = did_you_mean(pattern, methods, _MOST_NAMES)
            raise PipelineError(f"{package}: has no method '{pattern}'; {hint}")
    if not targets:
        raise PipelineError(
            f"no package that matches '{name}' has a method '{pattern}'"
        )
    return targets


def _fitting_methods(word: str, methods: Sequence[str]) -> list[str]:
    """Return the methods that a word stands for; `a+b` names methods that are compiled together."""
    patterns = [word] if word in methods else word.split("+")
    return [
        method
        for method in methods
        if any(fits_word(method, pattern) for pattern in patterns)
    ]


def fits_word(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def is_pattern(word: str) -> bool:
    """Return whether a word is a shell-style pattern."""
    return any(letter in word for letter in _WILD)


# Rewriting words to names of tasks


def rewrite(
    words: Sequence[str],
    plan: Callable[[], Plan],
    foreign_tasks: Collection[str],
    executes: bool,
) -> list[str]:
    """Return a command line's words, rewritten to names of tasks.

    Args:
        plan: returns the plan; called only if words need it.
        foreign_tasks: the names of the dodo file's other tasks, which take precedence over
            packages.
        executes: whether the command executes tasks rather than listing them, for example.

    Raises:
        PipelineError: a package, method or model doesn't exist.
    """
    names: list[str] = []
    group = ""
    for number, word in enumerate(words):
        prefix, colon, target = word.partition(":")
        if word.startswith("-"):  # the rest belongs to a task
            return [*_join_validations(names), *words[number:]]
        if word in GROUPS:
            names.append(word)
            group = word
        elif colon and prefix in GROUPS:
            names += _tasks(plan(), prefix, target)
        elif word in foreign_tasks or colon or word.startswith("build/"):
            names.append(word)
        elif group:
            if word not in plan().packages:
                _refuse_verb(word)
            if names[-1] == group:  # the group is not meant as a whole
                names.pop()
            names += _tasks(plan(), group, word)
        elif word.partition("/")[0] in plan().packages:
            names += _tasks(plan(), "lower", word)
            names += _tasks(plan(), "validate", word) if executes else []
        else:
            names.append(word)
    return _join_validations(names)


def _join_validations(words: Sequence[str]) -> list[str]:
    """Return words with one validate task per package, joining its methods.

    The joined task is dropped if the whole package is validated too. With a task per method, each
    would replace the report of the one before.
    """
    task_to_methods: dict[str, list[str]] = {}
    for word in dict.fromkeys(words):
        task, slash, methods = word.partition("/")
        if not slash or not task.startswith("validate:"):
            task_to_methods[word] = []
        elif "validate" not in words and task not in words:
            task_to_methods.setdefault(task, []).extend(methods.split("+"))
    names = []
    for task, parts in task_to_methods.items():
        unit = unit_name(dict.fromkeys(parts))
        names.append(f"{task}/{unit}" if unit else task)
    return names


def _tasks(plan: Plan, group: str, word: str) -> list[str]:
    """Return the names of a group's tasks that a word stands for. Raises PipelineError."""
    if group == "export":
        return [f"export:{quoted(name)}" for name in _find_exports(plan, word)]
    names: list[str] = []
    for target in find_targets(plan, [word]):
        names += _tasks_of_target(plan, group, target)
    return names


def _tasks_of_target(plan: Plan, group: str, target: Target) -> Iterator[str]:
    package = target.package
    name = quoted(target.package)
    is_of_packages = group in ("lower", "validate")
    if plan.problems(package):  # these are reported when its turn comes
        yield f"{group}:{name}" if is_of_packages else f"lower:{name}"
    elif is_of_packages and not target.methods:
        yield f"{group}:{name}"
    elif group == "validate":
        yield f"validate:{name}/{unit_name(target.methods)}"
    elif group == "quantize":
        for method in _quantized_methods(plan, target):
            yield f"quantize:{name}/{method}"
    else:
        for unit in plan.units(package):
            if not target.methods or set(unit) & set(target.methods):
                yield f"compile:{name}/{unit_name(unit)}"


def _quantized_methods(plan: Plan, target: Target) -> list[str]:
    methods = plan.quantized(target.package)
    if target.methods:
        methods = tuple(method for method in methods if method in target.methods)
    if not methods:
        title = target.package
        if target.methods:
            title += f"/{'+'.join(target.methods)}"
        raise PipelineError(f"{title}: its config quantizes nothing")
    return list(methods)


def _find_exports(plan: Plan, word: str) -> list[str]:
    """Return the exports that a word names: that of a model, of a package, or an export itself."""
    name_to_exports = {export: [export] for export in plan.exporters}
    for export in plan.exporters:
        name_to_exports.setdefault(parse_export(export)[0], []).append(export)
    for package in plan.packages:
        exporter = plan.exporter(package)
        if exporter is not None:
            name_to_exports.setdefault(package, [exporter])
    if word in plan.packages and word not in name_to_exports:
        raise PipelineError(f"{word}: its model is an archive, so nothing is exported")
    exports: list[str] = []
    for name in find_named(word, name_to_exports, "model"):
        exports += name_to_exports[name]
    return list(dict.fromkeys(exports))


# Words that no task has


def check_words(
    words: Sequence[str], tasks: Iterable[Any], suggestions: Iterable[str]
) -> None:
    """Raise PipelineError for the first word that isn't a task, a target or a matching pattern.

    Args:
        tasks: doit's tasks.
        suggestions: names to suggest in addition to those of tasks: commands and packages.
    """
    name_to_task = {task.name: task for task in tasks}
    if any(task.loader for task in name_to_task.values()):
        return  # delayed tasks are known only later
    targets: set[str] = set()
    for task in name_to_task.values():
        targets.update(map(str, task.targets))
    for word in words:
        if word.startswith("-") or (word in name_to_task and name_to_task[word].params):
            return
        if word in name_to_task or word in targets:
            continue
        if "*" in word and any(fnmatchcase(name, word) for name in name_to_task):
            continue
        _refuse_verb(word)
        names = [*GROUPS, *VERBS, *ANYWHERE]
        for name, task in name_to_task.items():
            is_shown = ":" in word or not task.subtask_of
            if is_shown and not name.startswith("_"):
                names.append(name)
        names = list(dict.fromkeys([*names, *suggestions]))
        raise PipelineError(
            f"no task '{word}'; {did_you_mean(word, names, _MOST_NAMES)}"
        )


def _refuse_verb(word: str) -> None:
    if word in VERBS or word in ANYWHERE:
        raise PipelineError(
            f"'{word}' is a command, so it must come first: `doit {word}`"
        )


def take_flags(
    verb: Command, words: Sequence[str]
) -> tuple[list[str], dict[str, bool | str]]:
    """Return the words after a verb without its options, and the value of each option.

    Values are keyed by parameter name. A flag's value is whether it was given; any other option's
    is its text, or "" if it was not given. Raises PipelineError for unknown options.
    """
    option_to_value: dict[str, bool | str] = {}
    for option in verb.options:
        name, _, placeholder = option.partition(" ")
        option_to_value[f"--{name}"] = "" if placeholder else False
    names: list[str] = []
    iterator = iter(words)
    for word in iterator:
        option, equals, text = word.partition("=")
        if isinstance(option_to_value.get(option), str):
            option_to_value[option] = text if equals else next(iterator, "")
            if not option_to_value[option]:
                raise PipelineError(
                    f"{verb.name}: {option} takes a value; usage: {usage(verb)}"
                )
        elif word in option_to_value:
            option_to_value[word] = True
        elif word.startswith("-"):
            _refuse_option(verb, word, option_to_value)
        else:
            names.append(word)
    return names, {
        option.removeprefix("--").replace("-", "_"): value
        for option, value in option_to_value.items()
    }


def _refuse_option(verb: Command, word: str, options: Iterable[str]) -> None:
    hint = did_you_mean(word, options) if verb.options else "it takes none"
    raise PipelineError(
        f"{verb.name}: no option '{word}'; {hint}; usage: {usage(verb)}"
    )


def empty_groups(words: Sequence[str], tasks: Iterable[Any]) -> Iterator[str]:
    """Yield a line for each requested group that has no tasks."""
    reasons: Mapping[str, str] = {
        "export": "no package has a model with a Python source",
        "quantize": "no config quantizes a method",
    }
    groups_with_tasks = {task.subtask_of for task in tasks}
    for word in words:
        if word in reasons and word not in groups_with_tasks:
            yield f"{word}: nothing to do: {reasons[word]}"
