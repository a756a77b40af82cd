"""Help: what commands and config keys mean, in a terminal and at the Tab key.

pages.py        what `doit help` prints
error_codes.py  which code an error has, and the page of each
candidates.py   what may stand at the end of a command line; imports neither doit nor torch
scripts.py      what `pte completion` prints for a shell
config_keys.json, error_codes.json   made by `python -m tools.reference`
"""

from __future__ import annotations

from pipeline.moments import Command, Feature

COMPLETION = Command(
    "completion",
    "print the script that lets a shell complete `pte` commands",
    "bash | zsh | fish",
    more="Commands, options, packages, methods, models and, after `pte help`, config keys are "
    "completed. Add the line for your shell to its startup file.",
    examples=(
        ('eval "$(pte completion bash)"', "in ~/.bashrc"),
        ('eval "$(pte completion zsh)"', "in ~/.zshrc, after compinit"),
        ("pte completion fish | source", "in ~/.config/fish/config.fish"),
    ),
    run="pipeline.features.help.scripts:run",
    anywhere=True,
)
FEATURE = Feature(
    "help",
    "print the help of commands, config keys and error codes, and complete them in a shell",
    verbs=(COMPLETION,),
    help_pages="pipeline.features.help.pages:find_page",
    suggest_page="pipeline.features.help.pages:suggest_page",
    show_error="pipeline.features.help.error_codes:show_error",
    find_code="pipeline.features.help.error_codes:find_code",
)
