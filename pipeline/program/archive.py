"""Reads and writes ExportedPrograms as PT2 archives, one method at a time, without pickle.

torch's own `load_pt2` reads every method of an archive with all weights, and unpickles sample
inputs; a worker needs one method. What an archive stores pickled (tensor subclasses, script
objects) is refused. Source: `torch/export/pt2_archive/_package.py` of torch 2.13.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import (
    SCHEMA_VERSION,
    ExportedProgramDeserializer,
    _bytes_to_dataclass,
)
from torch.export import ExportedProgram
from torch.export.pt2_archive import _package, constants

from pipeline.program.sources import shown
from pipeline.store.errors import SourceError

_RAW_PREFIXES = (constants.WEIGHT_FILENAME_PREFIX, constants.TENSOR_CONSTANT_FILENAME_PREFIX)


def register_operators() -> None:
    """Register the operators of quantized programs, and of those that portable kernels run."""
    import executorch.kernels.quantized  # noqa: F401
    import torch.ao.quantization.fx._decomposed  # noqa: F401
    import torchao.quantization.quant_primitives  # noqa: F401
    from executorch.exir.passes import _quant_patterns_and_replacements  # noqa: F401


def load_program(archive: Path, entry: str) -> ExportedProgram:
    """Load the program of one entry, without example inputs. Raises SourceError."""
    register_operators()
    try:
        reader = _package.PT2ArchiveReader(str(archive))
        _refuse_pickled(reader, archive, entry)
        serialized = _bytes_to_dataclass(
            schema.ExportedProgram, reader.read_bytes(f"models/{entry}.json")
        )
        return ExportedProgramDeserializer().deserialize(
            serialized,
            _package._load_state_dict(reader, entry),
            _package._load_constants(reader, entry),
        )
    except SourceError:
        raise
    except Exception as error:  # torch raises what its readers happen to raise
        raise SourceError(f"{shown(archive)}: {_explain(archive, entry, error)}") from error


def load_example_inputs(archive: Path, entry: str) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Load the (args, kwargs) that the archive was exported with, None where it holds none."""
    try:
        data = _read_member(archive, f"data/sample_inputs/{entry}.pt")
        inputs = torch.load(io.BytesIO(data), weights_only=True) if data else None
    except KeyError:
        return None
    except Exception as error:
        raise SourceError(
            f"{shown(archive)}: example inputs of '{entry}' cannot be read ({error}); "
            "they may hold tensors, numbers and containers of them"
        ) from error
    return inputs or None


def save_programs(programs: Mapping[str, ExportedProgram], file: Any) -> None:
    """Write an archive of the programs, in their order, to a file-like object.

    Example inputs are left out: `package_pt2` pickles them, and an exporter gives its own.
    """
    copies = {n: p._update(p.graph_module, p.graph_signature) for n, p in programs.items()}
    for program in copies.values():
        program._example_inputs = None
    _package.package_pt2(file, exported_programs=copies)


def _read_member(archive: Path, name: str) -> bytes:
    with zipfile.ZipFile(archive) as members:
        root = members.namelist()[0].split("/", 1)[0]
        return members.read(f"{root}/{name}")


def _refuse_pickled(reader: Any, archive: Path, entry: str) -> None:
    for kind in ("weights", "constants"):
        if f"data/{kind}/{entry}.pt" in reader.get_file_names():
            raise SourceError(
                f"{shown(archive)}: '{entry}' stores its {kind} pickled, as older torch did; "
                f"export it again with torch {torch.__version__}"
            )
        config = json.loads(reader.read_string(f"data/{kind}/{entry}_{kind}_config.json"))
        # torch goes by the file's name for constants, whatever `use_pickle` says.
        pickled = sorted(
            name
            for name, meta in config["config"].items()
            if meta.get("use_pickle") or not meta["path_name"].startswith(_RAW_PREFIXES)
        )
        if pickled:
            raise SourceError(
                f"{shown(archive)}: '{entry}' stores {', '.join(pickled)} pickled (a tensor "
                "subclass or a script object), which is not read; export plain tensors"
            )


def _explain(archive: Path, entry: str, error: Exception) -> str:
    """Explain a failed load in a line: an archive of another torch, or a damaged one."""
    try:
        program = json.loads(_read_member(archive, f"models/{entry}.json"))
        written, own = program["schema_version"], tuple(SCHEMA_VERSION[:2])
        version = (written["major"], written["minor"])
        other = version[0] != own[0] or version > own
    except Exception:  # zipfile raises what a damaged file leads it to
        return f"'{entry}' cannot be read ({error})"
    by = program.get("torch_version") or "an unknown version"
    if other:
        return (
            f"'{entry}' was written by torch {by} (schema {version[0]}.{version[1]}), and this is "
            f"torch {torch.__version__} (schema {own[0]}.{own[1]}); export it again with this torch"
        )
    return f"'{entry}', written by torch {by}, cannot be read ({type(error).__name__}: {error})"
