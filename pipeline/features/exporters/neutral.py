"""The environment that all exporters' processes share, whoever starts the build.

The home folder stays: it contains caches of models (`~/.cache/huggingface`), and files read from
them count by content. The path of the workspace can't be the same everywhere either.
"""

from __future__ import annotations

import errno
import locale
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.plan.reads import NEUTRAL

_UMASK = 0o022
# The POSIX form, which names no file of the system.
_TIME_ZONE = "UTC0"
# Python, and glibc from 2.35 on, have it without any file.
_LOCALE = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"


@contextmanager
def neutral_process(root: Path) -> Iterator[None]:
    """Within the context, give this process and its forks the environment of all exporters.

    This is the same working folder, umask, locale and time zone, and a folder for temporary files.
    """
    variables = {name: os.environ.get(name) for name in NEUTRAL}
    folder, umask = os.open(".", os.O_RDONLY), os.umask(_UMASK)
    language = locale.setlocale(locale.LC_ALL)
    neutral = {
        "LC_ALL": _LOCALE,
        "PWD": str(root),
        "TMPDIR": tempfile.gettempdir(),
        "TZ": _TIME_ZONE,
    }
    try:
        os.chdir(root)
        _set_variables({**dict.fromkeys(NEUTRAL), **neutral})
        _set_locale(_LOCALE)
        yield
    finally:
        _set_variables(variables)
        _set_locale(language)
        os.umask(umask)
        os.chdir(folder)
        os.close(folder)


def _set_variables(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    time.tzset()


def _set_locale(name: str) -> None:
    """Set C's locale, with which Python decodes files opened without an encoding.

    Also loads the error texts now, which the first error would otherwise look up in files.
    """
    with suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, name)
    os.strerror(errno.ENOENT)
