"""`doit verify`: verifies a folder against the attestations in it. It needs no workspace."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.cli.commands import usage
from pipeline.features.provenance import VERIFY
from pipeline.features.provenance.envelopes import check_library
from pipeline.features.provenance.keys import load_keys, read_keys
from pipeline.features.provenance.verification import verify_folder
from pipeline.store.errors import PipelineError, plural
from pipeline.store.setting_table import variable_of
from pipeline.store.visible import one_line

COMMIT = "--commit"


def run(words: Sequence[str], root: Path) -> int:
    """Print the facts that hold for a folder and its problems; return the exit status.

    Args:
        words: the folder and public keys, and `--commit` with a commit if one is given.
        root: folder whose settings name the trusted keys if no key is given.

    Raises:
        PipelineError: the command line is malformed, or a key can't be used.
    """
    words, commit = _take_commit(words)
    if not words or words[0].startswith("-"):
        raise PipelineError(f"usage: {usage(VERIFY)}")
    folder, *given = map(Path, words)
    if not folder.is_dir():
        raise PipelineError(
            f"verify: {folder}: is not a folder; usage: {usage(VERIFY)}"
        )
    check_library()
    keys = load_keys(None, given) if given else read_keys(root)
    if not keys.trusted:
        hint = f"name a key file after the folder, or in {variable_of('trusted_keys')}"
        raise PipelineError(f"verify: no public key to verify with; {hint}")
    findings, problems = verify_folder(folder, keys, commit)
    for line in findings:
        print(one_line(line))
    for line in problems:
        print(one_line(f"verify: {line}"), file=sys.stderr)
    if problems:
        print(f"verify: {folder}: {plural(len(problems), 'problem')}", file=sys.stderr)
    return int(bool(problems))


def _take_commit(words: Sequence[str]) -> tuple[Sequence[str], str]:
    """Return the words without the option `--commit`, and its value."""
    if COMMIT not in words:
        return words, ""
    place = words.index(COMMIT)
    commit = "".join(words[place + 1 : place + 2])
    # The full id is required: someone can make a commit whose id begins like a short one.
    if not re.fullmatch(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}", commit):
        raise PipelineError(f"verify: {COMMIT} {commit}: must be a full git commit id")
    return [*words[:place], *words[place + 2 :]], commit.lower()
