"""MPS and MLX, for Apple's GPUs: executorch/backends/apple/mps and executorch/backends/mlx."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from pkgutil import walk_packages
from runpy import run_path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from pipeline.backends.entry import Backend, Execution, Lowering, Preprocessing, Why
from pipeline.backends.host import (
    Host,
    Requirement,
    explain_missing_delegate,
    find_delegate_facts,
    package_folders,
)
from pipeline.backends.options import NoOptions, Options
from pipeline.backends.reasons import NOT_OF_THIS_TYPE
from pipeline.program.patching import replaced
from pipeline.store.errors import PipelineError

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram

# ExecuTorch's wheel leaves out the generated half of MLX's Python delegate, but ships the generator
# (executorch/backends/mlx/serialization/generate.py), the schema and flatc. The generated files are
# imported from a temporary folder; nothing is written to the installed packages.
_PACKAGE = "executorch.backends.mlx.serialization"
_GENERATED = "mlx_graph_schema.py"


def _installed_files() -> tuple[Path, Path]:
    """Return the serialization package's folder and flatc, which only ExecuTorch's wheels ship."""
    (root, *_) = package_folders("executorch")
    return root / "backends" / "mlx" / "serialization", root / "data" / "bin" / "flatc"


def mlx_installed() -> bool:
    """Return whether everything needed to lower to MLX is installed, without importing it."""
    folder, flatc = _installed_files()
    return (folder / _GENERATED).is_file() or flatc.is_file()


def provide_mlx() -> None:
    """Make `executorch.backends.mlx` importable, once per process. Takes about 2 s.

    Raises:
        PipelineError: flatc failed.
    """
    source, flatc = _installed_files()
    if (source / _GENERATED).is_file() or _PACKAGE in sys.modules:
        return
    with tempfile.TemporaryDirectory(prefix="pte-mlx-") as folder:
        path = Path(folder, "mlx", "serialization")
        shutil.copytree(source, path, ignore=shutil.ignore_patterns("__pycache__"))
        _generate(path, flatc)
        package = ModuleType(_PACKAGE)
        package.__path__ = [str(path)]
        sys.modules[_PACKAGE] = package
        try:
            importlib.import_module("executorch.backends.mlx")
            # Import all modules now: some are first used later, when the folder no longer exists.
            for module in walk_packages(
                [str(path / "_generated")], f"{_PACKAGE}._generated."
            ):
                importlib.import_module(module.name)
        except BaseException:
            del sys.modules[_PACKAGE]
            raise


def _generate(path: Path, flatc: Path) -> None:
    """Do what the generator's `main` does, except the C++ files, whose templates are missing."""
    output = StringIO()
    with redirect_stdout(output):
        generator = SimpleNamespace(**run_path(str(path / "generate.py")))
        schema = generator.parse_fbs(generator.SCHEMA_FBS)
        generator.RUNTIME_DIR.mkdir()
        succeeded = generator.run_flatc(str(flatc))
        generator._fixup_flatc_imports()
    if not succeeded:
        raise PipelineError(f"mlx: flatc failed: {output.getvalue().strip()}")
    generator.GENERATED_SCHEMA_PY.write_text(generator.generate_python_schema(schema))
    generator.GENERATED_SERIALIZERS.write_text(
        generator.generate_python_serializers(schema)
    )


@contextmanager
def mlx_reproducible() -> Iterator[None]:
    """Keep the location of a model's source out of constant names, within the context.

    Upstream prefixes them with a hash of the program's listing, whose comments name files and
    lines.
    """
    from executorch.backends.mlx import preprocess

    def sha256(listing: bytes) -> Any:
        lines = listing.splitlines(keepends=True)
        return hashlib.sha256(
            b"".join(x for x in lines if not x.lstrip().startswith(b"#"))
        )

    with replaced(
        preprocess, "hashlib", lambda original: SimpleNamespace(sha256=sha256)
    ):
        yield


class MPSOptions(Options):
    """The compile specs of `MPSPartitioner`."""

    use_fp16: bool = True
    """Compute in float16."""


def _mps_partitioner(options: MPSOptions) -> Partitioner:
    from executorch.backends.apple.mps.partition import MPSPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    return MPSPartitioner(
        compile_specs=[]
        if options.use_fp16
        else [CompileSpec("use_fp16", bytes([False]))]
    )


def _mlx_partitioner(options: NoOptions) -> Partitioner:
    provide_mlx()
    from executorch.backends.mlx.partitioner import MLXPartitioner

    return MLXPartitioner()


@contextmanager
def _mps_reasons(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """Name the operators for which the partitioner has no visitor."""
    why: Why = {}
    yield why
    visitors = partitioner.supported_ops.node_visitors  # type: ignore[attr-defined]
    for node in program.graph.nodes:
        if (
            node.op == "call_function"
            and getattr(node.target, "__name__", "") not in visitors
        ):
            why[node] = NOT_OF_THIS_TYPE


@contextmanager
def _mlx_reasons(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """Read the reasons from the partitioner's builder, which visits the program first."""
    why: Why = {}
    yield why
    support = getattr(partitioner, "supported_ops", None)
    for node, info in support._builder.node_info.items() if support is not None else ():
        if not info.supported:
            why[node] = info.unsupported_reason or NOT_OF_THIS_TYPE


def _mlx_cannot_run() -> str:
    """Return why this machine can't run MLX payloads, or "" if it can.

    ExecuTorch's macOS wheels include the MLX delegate (tools/cmake/preset/pybind.cmake).
    """
    return (
        ""
        if sys.platform == "darwin"
        else explain_missing_delegate("MLXBackend", "MLX")
    )


ENTRIES = (
    Backend(
        name="mps",
        backend_id="MPSBackend",
        summary="Apple's GPUs; deprecated in favour of coreml",
        options=MPSOptions,
        lowering=Lowering(
            _mps_partitioner, reasons=_mps_reasons, control_flow=frozenset()
        ),
        preprocessing=Preprocessing(
            details="executorch.backends.apple.mps.mps_preprocess:MPSBackend"
        ),
        execution=Execution(
            cannot_run=lambda: "the runtime in ExecuTorch's wheels has no MPS delegate",
            elsewhere="nowhere",
        ),
    ),
    Backend(
        name="mlx",
        backend_id="MLXBackend",
        summary="Apple silicon's GPUs, through MLX",
        options=NoOptions,
        lowering=Lowering(
            _mlx_partitioner, reasons=_mlx_reasons, control_flow=frozenset()
        ),
        preprocessing=Preprocessing(around=mlx_reproducible),
        host=Host(
            requirements=(
                Requirement(
                    "executorch/data/bin/flatc, which ExecuTorch's wheels hold",
                    "pip install --force-reinstall --no-deps executorch",
                    mlx_installed,
                ),
            )
        ),
        execution=Execution(
            cannot_run=_mlx_cannot_run,
            facts=partial(find_delegate_facts, "MLXBackend"),
            elsewhere="library, Mac",
        ),
    ),
)
