"""The options of a run, which may appear anywhere: `doit lower vision -n 4`."""

from __future__ import annotations

import getopt
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.store.errors import PipelineError, shown
from pipeline.store.setting_table import SETTINGS

_SHORT = "n:av"
_LONG = ("process=", "always-execute", "verbose")
_VERBOSE = ("-v", "--verbose")
_ALLOW = "--allow"
_DATABASE = "--db-file"
_ALLOW_VARIABLE = "PTE_PIPELINE_ALLOW"


class RunOptions(NamedTuple):
    """The options that a command line has after the names of tasks, where doit accepts none.

    Attributes:
        jobs: the number of workers; 0 if not given.
        always: whether to run actions even if the store has their results.
        verbose: whether the table has rows for methods.
        methods_of: the packages that have these rows in any case.
    """

    jobs: int = 0
    always: bool = False
    verbose: bool = False
    methods_of: tuple[str, ...] = ()


def take_options(words: Sequence[str]) -> tuple[list[str], RunOptions]:
    """Split words into those without the options of a run, and the options.

    Raises:
        PipelineError: an unknown option follows one of our groups.
    """
    if not words or words[0].startswith("-"):
        return [word for word in words if word not in _VERBOSE], RunOptions()
    command = words[0].partition(":")[0]
    try:
        pairs, names = getopt.gnu_getopt(list(words), _SHORT, _LONG)
        flags = {}
        for flag, value in pairs:
            flags[flag.replace("process", "n").strip("-")[0]] = value
        jobs = flags.get("n", "0")
        if not jobs.isdecimal():
            raise getopt.GetoptError(f"-n takes a whole number, not '{jobs}'")
    except getopt.GetoptError as error:
        hint = f"`doit help {command}` lists its options"
        raise PipelineError(f"{command}: {error}; {hint}") from error
    return names, RunOptions(int(jobs), "a" in flags, "v" in flags)


def drop_database(words: Sequence[str]) -> list[str]:
    """Return the words of a verb without `--db-file`, since verbs need no database."""
    others: list[str] = []
    iterator = iter(words)
    for word in iterator:
        if word == _DATABASE:
            next(iterator, "")
        elif not word.startswith(f"{_DATABASE}="):
            others.append(word)
    return others


def take_allowed(words: Sequence[str]) -> list[str]:
    """Return the words without `--allow VERDICTS`, which becomes the setting `allow` for this run.

    Raises PipelineError for unknown verdicts.
    """
    names, verdicts = take_option(words, _ALLOW)
    if verdicts:
        text = ",".join(verdicts)
        setting = SETTINGS["allow"]
        try:
            setting.parse(text, Path())
        except ValueError:
            fault = f"{_ALLOW}: is {shown(text)}; must be {setting.expected}"
            raise PipelineError(fault) from None
        os.environ[_ALLOW_VARIABLE] = text
    return names


def take_option(words: Sequence[str], option: str) -> tuple[list[str], list[str]]:
    """Return the words without an option that may appear anywhere, and the option's values."""
    names: list[str] = []
    values: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name != option:
            names.append(word)
        elif equals:
            values.append(value)
        else:
            values.append(next(remaining, ""))
    return names, values


def number_verbosity(words: Sequence[str]) -> list[str]:
    """Return the words with a number after doit's own `-v`, which requires one."""
    numbered = list(words)
    for place, word in enumerate(words):
        if not word.startswith("-"):
            break
        follower = words[place + 1] if place + 1 < len(words) else ""
        if word == "-v" and not follower.isdecimal():
            numbered[place] = "-v2"
    return numbered
