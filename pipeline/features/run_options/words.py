"""Rewrites a command line with these options into one that doit and the core understand.

lower 'vis*' -j 4 -k enc    becomes    -n 4 lower vision/encode
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.cli.commands import ANYWHERE, GROUPS, VERBS, Command
from pipeline.cli.grammar import is_pattern
from pipeline.features.run_options.selection import Selector, read_failed
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.store.workspace import open_workspace

_DOIT_COMMANDS = ("list", "info", "clean", "forget")  # their words name packages
# Options of doit and of ours that are followed by a value, which is not a name.
_WITH_VALUE = (
    *("-n", "--process", "-r", "--reporter", "-o", "--output-file", "-P", "-f"),
    *("--file", "-d", "--dir", "--parallel-type", "--allow", "--db-file", "--backend"),
)
_WORKERS = ("-n", "--process")
_FLAGS = {
    "-x": "fail_fast",
    "--fail-fast": "fail_fast",
    "-q": "quiet",
    "--quiet": "quiet",
    "--last-failed": "last_failed",
    "--lf": "last_failed",
}
_CLUSTER = "-[qx]{2,}"
_VALUES = {"-j": "jobs", "--jobs": "jobs", "-k": "expressions"}
_PREFIX = "--"
_SPELLED = [option for option in (*_FLAGS, *_VALUES) if option.startswith(_PREFIX)]
_LIKENESS = 0.85
_OF_RUNS = ("-j", "--jobs", "-x", "--fail-fast", "-q", "--quiet")


class CommandLine:
    """A command line with the options of this feature taken out.

    Attributes:
        words: the remaining words.
        names: the `words` that are neither options nor values of options.
        flags: the flags present, out of `quiet`, `fail_fast` and `last_failed`.
        jobs: the values of `-j`; the last one counts.
        expressions: the values of `-k`; a method has to match all of them.
    """

    def __init__(self, words: Sequence[str], kept: Sequence[str] = ()) -> None:
        """Parse words, leaving the options in `kept` in place.

        Raises PipelineError for an option without its value.
        """
        self.words: list[str] = []
        self.names: list[str] = []
        self.flags: set[str] = set()
        self.jobs: list[str] = []
        self.expressions: list[str] = []
        self._kept = kept
        remaining = iter(words)
        for word in remaining:
            self._take(word, remaining)

    @property
    def selects(self) -> bool:
        return bool(self.expressions or "last_failed" in self.flags)

    def _take(self, word: str, remaining: Iterator[str]) -> None:
        option, equals, value = word.partition("=")
        if word[:2] in _VALUES and len(word) > 2:  # -j4
            option, equals, value = word[:2], "=", word[2:]
        if not word.startswith("-"):
            self.words.append(word)
            self.names.append(word)
        elif option in self._kept:
            self.words.append(word)
        elif word in _FLAGS:
            self.flags.add(_FLAGS[word])
        elif re.fullmatch(_CLUSTER, word):  # -xq
            self.flags.update(_FLAGS[f"-{letter}"] for letter in word[1:])
        elif option in _VALUES:
            text = value if equals else next(remaining, "")
            if not text:
                raise PipelineError(f"{option} takes a value")
            if _VALUES[option] == "jobs":
                self.jobs.append(text)
            else:
                self.expressions.append(text)
        else:
            _check_spelling(option)
            self.words.append(word)
            if word in _WITH_VALUE:
                self.words += itertools.islice(remaining, 1)


def _check_spelling(option: str) -> None:
    """Raise PipelineError for a misspelling of one of this feature's options: `--failfast`.

    An option that a command has is accepted.
    """
    from difflib import get_close_matches  # only for unknown options

    near = get_close_matches(option, _SPELLED, n=1, cutoff=_LIKENESS)
    if not near or option in near or len(option) < len(_PREFIX) + 3:
        return
    for verb in VERBS.values():
        if option.lstrip("-") in {name.split()[0] for name in verb.options}:
            return
    raise PipelineError(f"no option '{option}'; {did_you_mean(option, _SPELLED)}")


def rewrite(command: str, words: Sequence[str], root: Path) -> list[str]:
    """Return the words of a command line, with this feature's options translated for doit.

    Args:
        command: the doit command, which is `run` for our verbs and tasks too.
        words: the words after the command.
        root: the workspace's folder.

    Raises:
        PipelineError: an option has no value or a wrong one, or nothing is selected.
    """
    if command == "info" and all(word.startswith("-") for word in words):
        raise PipelineError("info: name one task, such as `doit info lower:vision`")
    if not any(map(_may_matter, words)):
        return list(words)
    if command == "run":
        return _rewrite_run(words, root)
    if command in _DOIT_COMMANDS:
        line = CommandLine(words, tuple(_FLAGS) + tuple(_VALUES))
        plan = Plan(open_workspace(root))
        return [*_options_of(line), *_expand(plan, line.names)]
    return list(words)


def _may_matter(word: str) -> bool:
    return word.startswith("-") or is_pattern(word)


def _options_of(line: CommandLine) -> list[str]:
    """Return the words that are not names."""
    names = iter(line.names)
    expected = next(names, None)
    options = []
    for word in line.words:
        if word == expected:
            expected = next(names, None)
        else:
            options.append(word)
    return options


def _rewrite_run(words: Sequence[str], root: Path) -> list[str]:
    """Rewrite the command line of one of our verbs, or of tasks."""
    line = CommandLine(words)
    verb = VERBS.get(line.names[0]) if line.names else None
    if verb is not None:
        return _rewrite_verb(verb, words, root)
    if line.names and line.names[0] in (*ANYWHERE, "help"):
        return list(words)
    names = line.names
    if line.selects or any(map(_may_matter, names)):
        plan = Plan(open_workspace(root))
        names = _expand(plan, names)
        if line.selects:
            names = _select_tasks(plan, names, _make_selector(plan, line))
    options = _run_options(line)
    if names and not _is_ours(names[0], root) and names == line.names:
        return list(words)  # a foreign task, which has its own options
    for option, value in itertools.pairwise(line.words):
        if option in _WORKERS and not value.isdecimal():
            raise PipelineError(f"{option} takes a whole number, not '{value}'")
    leading = line.words  # doit takes these only before names
    if line.names:
        leading = line.words[: line.words.index(line.names[0])]
    # doit's own `-v` takes a number, which the core adds if the option comes first.
    leading = sorted(leading, key=lambda word: word != "-v")
    return [*options, *leading, *names, *_options_of(line)[len(leading) :]]


def _is_ours(name: str, root: Path) -> bool:
    """Return whether a word names one of our tasks, or a package."""
    if name.partition(":")[0] in GROUPS:
        return True
    return name.partition("/")[0] in Plan(open_workspace(root)).packages


def _run_options(line: CommandLine) -> list[str]:
    """Return the options of `doit run` that a command line has under other names."""
    options = []
    if line.jobs:
        if not line.jobs[-1].isdecimal():
            raise PipelineError(f"-j takes a whole number, not '{line.jobs[-1]}'")
        options += ["-n", line.jobs[-1]]
    if "fail_fast" in line.flags:
        options.append("--no-continue")
    if "quiet" in line.flags:
        options += ["-r", "quiet"]
    return options


def _rewrite_verb(verb: Command, words: Sequence[str], root: Path) -> list[str]:
    """Rewrite the command line of a verb, which may name packages and other things."""
    if "package" not in verb.words:
        return list(words)
    line = CommandLine(words, _OF_RUNS)
    if not line.selects:
        return list(words)
    plan = Plan(open_workspace(root))
    selector = _make_selector(plan, line)
    named = []
    others = []
    for name in _expand(plan, line.names[1:]):
        if name.partition("/")[0] in plan.packages:
            named.append(name)
        else:
            others.append(name)
    names = selector.select(named, "/method" in verb.words)
    return [verb.name, *others, *names, *_options_of(line)]


def _make_selector(plan: Plan, line: CommandLine) -> Selector:
    """Return the selector of packages and methods; print a line if no package failed."""
    failed = None
    if "last_failed" in line.flags:
        failed = read_failed(plan)
        if not failed:
            print("nothing failed in the last run: all packages are selected")
    return Selector(plan, line.expressions, failed or None)


def _expand(plan: Plan, names: Sequence[str]) -> list[str]:
    """Return names with patterns replaced by the packages that match them.

    A word after a group such as `lower` stays as it is: there the core expands patterns, and
    reports those that match nothing.
    """
    expanded: list[str] = []
    in_group = False
    for name in names:
        package, slash, method = name.partition("/")
        in_group = in_group or name in GROUPS
        if in_group or ":" in name or not is_pattern(package):
            expanded.append(name)
            continue
        from pipeline.cli.grammar import find_named

        for fitting in find_named(package, plan.packages, "package"):
            expanded.append(f"{fitting}{slash}{method}")
    return expanded


def _select_tasks(plan: Plan, names: Sequence[str], selector: Selector) -> list[str]:
    """Return the words of a run, reduced to the selected packages and methods."""
    group_to_names: dict[str, list[str]] = {}
    group = ""
    for name in names:
        prefix, colon, target = name.partition(":")
        if name in GROUPS:
            group = name
            group_to_names.setdefault(group, [])
        elif colon and prefix in GROUPS:
            group_to_names.setdefault(prefix, []).append(target)
        else:
            group_to_names.setdefault(group, []).append(name)
    if not group_to_names:
        group_to_names = {"lower": [], "validate": []}
    words: list[str] = []
    for group, targets in group_to_names.items():
        selected = selector.select(targets, group != "export", group)
        words += filter(None, (group, *selected))
    return words
