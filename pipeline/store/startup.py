"""Code that runs before any of ours, through which a site or a user can change everything after it.

This covers libraries that the dynamic loader is configured to load (`man 8 ld.so`), `sitecustomize`
and `usercustomize`, lines of `.pth` files that begin with `import`, and the modules that these
import (https://docs.python.org/3/library/site.html). Nothing is imported here.
"""

from __future__ import annotations

import ast
import os
import re
import site
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pipeline.store.digest import hash_bytes, hash_file, hash_json
from pipeline.store.distributions import module_identity

# Lines of installers: they choose between copies of distutils, or locate an editable install or a
# virtual environment, whose place differs between machines.
_OF_INSTALLERS = ("__editable__", "_distutils_hack", "_virtualenv")
# Where the loader first looks for a library built for newer processors.
_FOR_PROCESSORS = "glibc-hwcaps/*/*.so*"
_IMPORTED = r"\b(?:import|from)\s+([A-Za-z_]\w*)|__import__\(['\"]([A-Za-z_]\w*)"


@cache
def startup_code() -> dict[str, str]:
    """Return digests of the startup code, by name; {} if there is none.

    It comprises the code that runs when Python starts, the modules that this code imports, and the
    libraries that take precedence over the system's.
    """
    digests = _hash_libraries()
    names = {"sitecustomize", "usercustomize"}
    for path, line in _find_lines():
        digests[path.name] = hash_bytes(f"{digests.get(path.name)}{line}".encode())
        names |= _find_imports(line.encode())
        # Imports inside strings, too: a `.pth` line must be a single line, so it may call `exec`.
        names |= {name for pair in re.findall(_IMPORTED, line) for name in pair if name}
    for name in sorted(_follow(names)):
        digests[f"import {name}"] = module_identity(name)
    return digests


def _hash_libraries() -> dict[str, str]:
    """Return digests of libraries that the loader loads first, or in place of the system's.

    The latter are hashed by name and size, because they may be gigabytes.
    """
    first = [os.environ.get(name, "") for name in ("LD_AUDIT", "LD_PRELOAD")]
    with suppress(OSError):
        first.append(Path("/etc/ld.so.preload").read_text(errors="replace"))
    contents = []
    for library in re.findall(r"[^\s:]+", " ".join(first)):
        contents.append(library)  # the loader finds a bare name in the system's folders
        with suppress(OSError):
            contents[-1] = hash_file(Path(library))
    sizes: dict[str, int] = {}
    for folder in library_folders():
        for path in sorted([*folder.glob("*.so*"), *folder.glob(_FOR_PROCESSORS)]):
            with suppress(OSError):  # libpython is covered by Python's version
                if not path.name.startswith("libpython"):
                    name = path.relative_to(folder).as_posix()
                    sizes.setdefault(name, path.stat().st_size)
    libraries = {"$LD_PRELOAD": contents, "$LD_LIBRARY_PATH": sizes}
    return {name: hash_json(facts) for name, facts in libraries.items() if facts}


def library_folders() -> list[Path]:
    """Return the folders that the loader searches for libraries before the system's folders."""
    names = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [Path(os.path.abspath(name)) for name in names if name]


def _find_lines() -> Iterator[tuple[Path, str]]:
    """Yield the lines of code in `.pth` files, in the order in which Python runs them."""
    folders = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    for folder in folders:
        for path in sorted(Path(folder).glob("*.pth")):
            with suppress(OSError):
                for line in path.read_bytes().decode(errors="replace").splitlines():
                    is_code = line.startswith(("import ", "import\t"))
                    if is_code and not any(name in line for name in _OF_INSTALLERS):
                        yield path, line


def _follow(names: set[str]) -> set[str]:
    """Return the installed modules with these names, and the modules that they import in turn.

    Python's own modules are left out. All files of a package are hashed, so its imports are not
    followed.
    """
    modules: set[str] = set()
    waiting = names - sys.stdlib_module_names
    while waiting:
        name = waiting.pop()
        spec = None
        with suppress(ImportError, ValueError):
            spec = find_spec(name)
        if spec is None:
            continue
        modules.add(name)
        if spec.origin and spec.submodule_search_locations is None:
            with suppress(OSError):
                imported = _find_imports(Path(spec.origin).read_bytes())
                waiting |= imported - modules - sys.stdlib_module_names
    return modules


def _find_imports(code: bytes) -> set[str]:
    """Return the top-level names that Python code imports anywhere in it."""
    names: set[str] = set()
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names
