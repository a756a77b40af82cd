"""MLX's delegate in Python, whose generated half ExecuTorch's wheel leaves out.

The wheel has the generator (executorch/backends/mlx/serialization/generate.py), the schema and
flatc. What they make is imported from a temporary folder; nothing is written where packages are
installed.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from pkgutil import walk_packages
from runpy import run_path
from types import ModuleType, SimpleNamespace
from typing import Any

from pipeline.backends.host import package_folders
from pipeline.backends.patching import replaced
from pipeline.store.errors import PipelineError

_PACKAGE = "executorch.backends.mlx.serialization"
_GENERATED = "mlx_graph_schema.py"


def _installed_files() -> tuple[Path, Path]:
    """Return the folder of the package, and flatc; the last one only in ExecuTorch's wheels."""
    (root, *_) = package_folders("executorch")
    return root / "backends" / "mlx" / "serialization", root / "data" / "bin" / "flatc"


def installed() -> bool:
    """Return whether everything is installed to lower to MLX, without importing it."""
    folder, flatc = _installed_files()
    return (folder / _GENERATED).is_file() or flatc.is_file()


def provide() -> None:
    """Make `executorch.backends.mlx` importable, once in a process. Takes about 2 s.

    Raises:
        PipelineError: flatc fails.
    """
    source, flatc = _installed_files()
    if (source / _GENERATED).is_file() or _PACKAGE in sys.modules:
        return
    with tempfile.TemporaryDirectory(prefix="pte-mlx-") as folder:
        path = Path(folder, "mlx", "serialization")
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, path, ignore=skipped)
        _generate(path, flatc)
        package = ModuleType(_PACKAGE)
        package.__path__ = [str(path)]
        sys.modules[_PACKAGE] = package
        try:
            importlib.import_module("executorch.backends.mlx")
            # Some are imported when they are first used, and by then the folder is gone.
            for module in walk_packages([str(path / "_generated")], f"{_PACKAGE}._generated."):
                importlib.import_module(module.name)
        except BaseException:
            del sys.modules[_PACKAGE]
            raise


def _generate(path: Path, flatc: Path) -> None:
    """Do what `main` of the generator does, without the C++ files, whose templates are missing."""
    said = StringIO()
    with redirect_stdout(said):
        generator = SimpleNamespace(**run_path(str(path / "generate.py")))
        schema = generator.parse_fbs(generator.SCHEMA_FBS)
        generator.RUNTIME_DIR.mkdir()
        made = generator.run_flatc(str(flatc))
        generator._fixup_flatc_imports()
    if not made:
        raise PipelineError(f"mlx: flatc failed: {said.getvalue().strip()}")
    generator.GENERATED_SCHEMA_PY.write_text(generator.generate_python_schema(schema))
    generator.GENERATED_SERIALIZERS.write_text(generator.generate_python_serializers(schema))


@contextmanager
def reproducible() -> Iterator[None]:
    """Keep, within the context, the place of a model's source out of the names of constants, which
    upstream begins with a hash of the program's listing, whose comments name files and lines."""
    from executorch.backends.mlx import preprocess

    def sha256(listing: bytes) -> Any:
        lines = listing.splitlines(keepends=True)
        return hashlib.sha256(b"".join(x for x in lines if not x.lstrip().startswith(b"#")))

    with replaced(preprocess, "hashlib", lambda original: SimpleNamespace(sha256=sha256)):
        yield
