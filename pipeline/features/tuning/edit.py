"""Puts the alternatives of a trial into a config file.

Every other line stays as it is, including comments and spaces. The edited text is composed and
compared with the trial before it is written, so a file in which one string supplies several values
(an anchor, for example) is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from pipeline.config.yaml import Node, load_nodes, plain
from pipeline.features.tuning.space import (
    Space,
    compose_choice,
    compose_root,
    make_trial_data,
)
from pipeline.features.tuning.trials import Trial
from pipeline.moments import call_all
from pipeline.store.errors import ConfigErrors, PipelineError
from pipeline.store.files import read_text_file, write_atomically


def write_choice(space: Space, trial: Trial) -> str:
    """Put the alternatives of a trial into its package's file, and return a line that says so.

    Raises:
        PipelineError: the file can't be edited without changing anything else.
    """
    file = f"{space.path.parent.name}/{space.path.name}"
    if trial.choice is None:
        return f"{file}: it already matches trial {trial.number}; nothing is written"
    before = read_text_file(space.path)
    aim = make_trial_data(compose_choice(space, trial.choice))
    for text in _list_edits(before.decode(), space.select(trial.choice)):
        # The text of a value may stand for other values, too: write only what composes to the
        # trial.
        if _compose_text(space, text.encode()) == aim:
            if text.encode() != before:
                write_atomically(space.path, text.encode())
            return f"{file}: trial {trial.number} is written"
    lines = [
        f"  {name}: {words}" for name, words in space.describe(trial.choice).items()
    ]
    fault = (
        "can't be edited without changing other values; make these changes yourself:"
    )
    raise PipelineError(f"{file}: {fault}", *lines)


def _compose_text(space: Space, content: bytes) -> Any:
    """Return the data of a trial with this content as the package's file.

    Returns None if the content is not a valid config.
    """
    try:
        root = load_nodes(content, space.path.name)
        if root is None:
            return None
        return make_trial_data(compose_root(space, root))
    except ConfigErrors:
        return None


def _list_edits(text: str, alternatives: Mapping[str, Node]) -> Iterator[str]:
    """Yield the contents that result from putting the alternatives into a file.

    An empty alternative removes the key or, if a base or the defaults give it a value, sets `null`.
    """
    values = []
    for node in alternatives.values():
        values.append([..., None] if node.value is None else [plain(node)])
    for combination in product(*values):
        edited: str | None = text
        for name, value in zip(alternatives, combination, strict=True):
            *keys, last = name.split(".")
            members = {last: value}
            if edited is not None:
                edited = next(call_all("edit_config", edited, "", keys, members), None)
        if edited is not None:
            yield edited
