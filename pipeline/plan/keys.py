"""Keys of the records that the plan keeps about archives and programs.

Keys of actions are in `plan/kinds/`, one module for each kind.
"""

from __future__ import annotations

from pipeline.plan.kinds.parts import Key
from pipeline.store.digest import Digest
from pipeline.store.toolchain import code


def programs_key(archive: Digest) -> Key:
    """Return the key of the record of the programs in an archive with this digest."""
    return {"kind": "programs", "archive": archive, "code": code("describe")}


def program_key(program: Digest) -> Key:
    """Return the key of the record of a program's parts, which serves to compare two programs."""
    return {"kind": "program", "program": program}
