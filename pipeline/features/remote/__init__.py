"""Remote: a store shared by a team and its CI, at any address that fsspec reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.moments import Feature, Setting
from pipeline.store.setting_table import checked, parse_seconds, parse_text

_MODES = ("read-write", "read-only")
_UNSIGNED = "unsigned"
_LOCAL = ("file", "local")  # fsspec's schemes of this machine's folders


def _parse_address(value: Any, _: Path) -> str:
    address = parse_text(value)
    scheme, place = [*address.split("://", 1), ""][:2]
    # fsspec takes `file://$UNSET` for the working folder, which is the workspace.
    is_place = scheme not in _LOCAL or place.startswith("/")
    return checked(address, is_place and place.strip("/") != "")


SETTINGS = {
    "remote": Setting(
        _parse_address,
        "an address such as s3://bucket/folder or file:///folder",
        "The address of a store that a team and its CI share; any fsspec address works.",
    ),
    "remote_mode": Setting(
        lambda value, _: checked(value, value in _MODES),
        " or ".join(_MODES),
        "Whether a build pushes its results to the remote, or only reads from it.",
        "read-write; read-only in an untrusted build",
    ),
    "remote_trust": Setting(
        lambda value, _: checked(value, value == _UNSIGNED),
        _UNSIGNED,
        "`unsigned` accepts results without checking their signatures, and so trusts everyone "
        "who can write to the remote.",
    ),
    "remote_timeout": Setting(
        parse_seconds,
        "a number of seconds above 0",
        "The maximum number of seconds for one step of a transfer.",
        "20",
    ),
    "remote_options": Setting(
        lambda value, _: checked(value, isinstance(value, dict)),
        "a table",
        "Additional arguments for fsspec, such as endpoint_url.",
        has_variable=False,
    ),
}
FEATURE = Feature(
    "remote",
    "share a store with a team and its CI through any fsspec address",
    settings=SETTINGS,
    prefetch_exports="pipeline.features.remote.prefetch:prefetch_exports",
    prefetch_packages="pipeline.features.remote.prefetch:prefetch_packages",
    remote_files="pipeline.features.remote.settings:open_files",
    remote_tier="pipeline.features.remote.settings:read_remote",
)
