"""Where modules are looked for in an untrusted build: not in the workspace.

There a file of a stranger's that is called as an installed module is (`filelock.py`) would be
imported in its place, by the process that builds and by its workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pte_pipeline.bytecode import check_bytecode
from pte_pipeline.name_conflict import claim_pipeline

SAFE_PATH = "PYTHONSAFEPATH"


def is_untrusted() -> bool:
    """Tell whether the build is one of a stranger's change."""
    return os.environ.get("PTE_PIPELINE_UNTRUSTED", "") not in ("", "0", "false")


def leave_workspace_out(root: Path) -> None:
    """Look for no module in a workspace, its folder of models, or the folder of this process. The
    environment's own folder may be inside of it."""
    here = os.path.realpath(os.curdir)
    root_folder = os.path.realpath(root)
    folders = {here, root_folder, os.path.join(root_folder, "models")}
    sys.path[:] = [path for path in sys.path if os.path.realpath(path or os.curdir) not in folders]


def begin_worker(is_users: bool, copied_well: Sequence[str]) -> None:
    """Begin a worker, before anything of this package is unpickled there.

    Args:
        copied_well: as `check_bytecode` takes them.
        is_users: whether the variable by which it was started safely is the user's; otherwise it is
            taken away, since exporters may look at the environment.
    """
    if not is_users:
        os.environ.pop(SAFE_PATH, None)
    check_bytecode(copied_well)
    claim_pipeline()
