"""`doit verify`: holds a folder to the attestations in it. It needs no workspace."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.cli.commands import VERIFY, usage
from pipeline.report.verify import verify_folder
from pipeline.store.envelopes import check_library
from pipeline.store.errors import PipelineError, plural
from pipeline.store.settings import VARIABLES, read_keys
from pipeline.store.signing import load_keys
from pipeline.store.visible import one_line


def run(words: Sequence[str], root: Path) -> int:
    """Print what holds of a folder, and what does not; return the exit status.

    Args:
        words: the folder and public keys.
        root: whose settings name the trusted keys, if none are given.

    Raises:
        PipelineError: the command line makes no sense, or a key can't be used.
    """
    if not words or words[0].startswith("-"):
        raise PipelineError(f"usage: {usage(VERIFY)}")
    folder, *given = map(Path, words)
    if not folder.is_dir():
        raise PipelineError(f"verify: {folder}: is no folder; usage: {usage(VERIFY)}")
    check_library()
    keys = load_keys(None, given) if given else read_keys(root)
    if not keys.trusted:
        hint = f"name the file of one after the folder, or in {VARIABLES['trusted_keys']}"
        raise PipelineError(f"verify: no public key to verify with; {hint}")
    verdict = verify_folder(folder, keys)
    for line in verdict.lines:
        print(one_line(line))
    for line in verdict.problems:
        print(one_line(f"verify: {line}"), file=sys.stderr)
    if verdict.problems:
        print(f"verify: {folder}: {plural(len(verdict.problems), 'thing')} wrong", file=sys.stderr)
    return int(bool(verdict.problems))
