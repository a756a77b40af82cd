"""What led to an error, and what of it has nothing to do with the model.

Errors are told by their types here: their texts may be those of anyone.
"""

from __future__ import annotations

import subprocess
import sys

from pipeline.store.reasons import iter_causes


def is_of_an_operator(error: BaseException) -> bool:
    """Tell whether a backend can have failed at an operator that it was given, and not for a file,
    a tool or a module that it lacks."""
    elsewhere = (OSError, MemoryError, ImportError, subprocess.SubprocessError)
    return not any(isinstance(cause, elsewhere) for cause in iter_causes(error))


def is_of_installed(error: BaseException) -> bool:
    """Tell whether a module is missing in a package that is there itself."""
    names = [
        c.name or "" for c in iter_causes(error) if isinstance(c, ModuleNotFoundError)
    ]
    return any(name.partition(".")[0] in sys.modules for name in names if "." in name)


def is_of_this_package(error: BaseException) -> bool:
    """Tell whether an import meant a workspace's own module `pipeline`: a note of the error says
    what hides that."""
    names = [c.name or "" for c in iter_causes(error) if isinstance(c, ImportError)]
    return any(name.partition(".")[0] == "pipeline" for name in names)
