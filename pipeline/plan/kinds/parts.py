"""Fields that are common to the keys of several kinds of actions.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeline.plan.user_code import Code, find_code
from pipeline.store.digest import Digest
from pipeline.store.toolchain import code, toolchain
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.config.models import MethodConfig, PackageConfig

Key = dict[str, Any]
# Operator libraries, in the order in which they are loaded.
Libraries = Sequence[tuple[str, Code]]
# The digests of the workspace files that a method's options name, by the option's path in the
# method, such as `partitioners[0].ethos-u.config_ini`.
OptionFiles = Mapping[str, Sequence[Digest]]
CALIBRATION = "quantize.calibration"
NOTHING: Mapping[str, Any] = MappingProxyType({})


def common_fields(kind: str, distributions: Sequence[str] = ()) -> Key:
    """Return the fields of every key: its kind, and the code and libraries behind the result."""
    return {"kind": kind, "code": code(kind), "toolchain": toolchain(distributions)}


def operator_fields(libraries: Libraries) -> Key:
    """Return the fields for operator libraries, in the order in which they are loaded."""
    names = [name for name, _ in libraries]
    if names:
        return {"operators": names, "operator_inputs": dict(libraries)}
    return {}


def file_fields(files: OptionFiles, quantizer: bool) -> Key:
    """Return the field for the files in options of the quantizer or of the partitioners.

    Calibration files have a field of their own.
    """
    contents = {
        place: digests
        for place, digests in files.items()
        if place != CALIBRATION and place.startswith("quantize.") == quantizer
    }
    if contents:
        return {"files": contents}
    return {}


def machine_facts(
    config: PackageConfig, methods: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Return, by backend, the facts about this machine that can change what the backends make."""
    machines = {backend.name: backend.machine for backend in config.backends(methods)}
    return {
        name: machine["facts"]
        for name, machine in sorted(machines.items())
        if "facts" in machine
    }


def hash_files(paths: Iterable[str], workspace: Workspace) -> list[Digest]:
    """Return the digests of the workspace files that exist."""
    return [digest for digest in map(workspace.find_data, paths) if digest is not None]


def hash_option_files(
    config: MethodConfig, workspace: Workspace
) -> dict[str, list[Digest]]:
    """Return the digests of the files that a method's options name, by the option's path."""
    return {
        place: hash_files(paths, workspace) for place, paths in config.files.items()
    }


def find_libraries(libraries: Libraries, workspace: Workspace) -> Libraries:
    """Return operator libraries with their current inputs. Raises SourceError."""
    names = [name for name, _ in libraries]
    return list(find_code("operators", names, workspace).items())
