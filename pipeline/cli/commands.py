"""The commands that this package adds to doit: their purpose, options and examples.

`doit help`, the tasks and the grammar of the command line are derived from these tables. All verbs
come from features.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.moments import Command, find_features

_TARGETS = "[package[/method] ...]"
_ANY = "Names may be patterns ('vision*', 'vision/enc*'); without names, all packages are selected."

# Groups of tasks: `doit lower vision` is short for `doit lower:vision`.
GROUPS: Mapping[str, Command] = {
    command.name: command
    for command in (
        Command(
            "lower",
            "lower packages: export, quantize, compile and link what is stale",
            _TARGETS,
            more=f"{_ANY} If you name a method, it is compiled but not linked.",
            examples=(
                ("doit lower", "all packages"),
                ("doit lower vision 'asr*'", "some packages, by name or pattern"),
                ("doit lower vision/classify", "one method, without linking"),
                ("doit lower -n 4", "with four workers"),
                ("doit lower vision -a", "compile again and ignore the store"),
                ("doit lower -v", "add a line for each method to the table"),
            ),
        ),
        Command(
            "validate",
            "lower packages, run them, and compare each with its source program",
            _TARGETS,
            more=(
                f"{_ANY} If you name methods, only these and the methods that share state with "
                "them are validated; reports list the others as not requested. If the "
                "whole package has already been validated, that result is used. The exit status "
                "is 0 only if everything passed; `--allow not-judged,not-run` also accepts these "
                "verdicts."
            ),
            examples=(
                ("doit validate vision", "one package"),
                ("doit validate vision/classify", "one method of a package"),
                (
                    "doit validate --allow not-run",
                    "accept packages that this machine can't run",
                ),
            ),
        ),
        Command(
            "export",
            "export the models that have a Python source",
            "[model | package ...]",
            examples=(("doit export asr", "the model of models/asr.py"),),
        ),
        Command(
            "quantize",
            "quantize methods, with calibration where needed",
            _TARGETS,
            more=_ANY,
            examples=(("doit quantize vision/classify", "one method"),),
        ),
        Command(
            "compile",
            "compile methods to objects, without linking them",
            _TARGETS,
            more=_ANY,
            examples=(("doit compile vision", "all methods of a package"),),
        ),
    )
}


def _find_verbs() -> tuple[dict[str, Command], dict[str, Command]]:
    """Return, by name, the verbs that need a workspace and those that don't."""
    verbs: dict[str, Command] = {}
    verbs_anywhere: dict[str, Command] = {}
    for feature in find_features():
        for verb in feature.verbs:
            table = verbs_anywhere if verb.anywhere else verbs
            table[verb.name] = verb
    return verbs, verbs_anywhere


VERBS, ANYWHERE = _find_verbs()


def usage(command: Command) -> str:
    """Return the usage of a command: `doit plan [--resolved] [package ...]`."""
    flags = [f"[--{name}]" for name in command.options]
    return " ".join(filter(None, ("doit", command.name, *flags, command.words)))
