"""Help: what each command does, its options and examples, inside a workspace and outside of one."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "help",
    "print the help of commands; doit's own help lists doit's commands alone",
    help_pages="pipeline.features.help.pages:find_page",
)
