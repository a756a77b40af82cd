"""Classifies the causes of an error, to rule out those that have nothing to do with the model.

Errors are recognized by type here, because anyone could have written their texts.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys

from pipeline.store.reasons import iter_causes


def is_of_an_operator(error: BaseException) -> bool:
    """Return whether a backend can have failed at an operator that it was given.

    The other possibility is that it lacked a file, a tool or a module.
    """
    elsewhere = (OSError, MemoryError, ImportError, subprocess.SubprocessError)
    return not any(isinstance(cause, elsewhere) for cause in iter_causes(error))


def is_of_a_file_limit(error: BaseException) -> bool:
    """Return whether a file can have become too large.

    Torch doesn't say why it can't write an archive, so then only a limit of this process counts.
    """
    if re.search("unexpected pos|StreamWriter", str(error)) is None:
        return True
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


def is_of_installed(error: BaseException) -> bool:
    """Return whether a missing module belongs to a package that is present."""
    names = [
        c.name or "" for c in iter_causes(error) if isinstance(c, ModuleNotFoundError)
    ]
    return any(name.partition(".")[0] in sys.modules for name in names if "." in name)


def is_of_this_package(error: BaseException) -> bool:
    """Return whether an import was meant for a workspace's own module `pipeline`.

    A note on the error says what hides that module.
    """
    names = [c.name or "" for c in iter_causes(error) if isinstance(c, ImportError)]
    return any(name.partition(".")[0] == "pipeline" for name in names)
