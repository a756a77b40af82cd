"""Writes `contract.json` and `selected_operators.yaml` when a package is linked."""

from __future__ import annotations

from pipeline.features.contracts.contract import describe_contract, format_selection
from pipeline.run.build.link import LinkedPackage, join_libraries_of
from pipeline.store.digest import Digest
from pipeline.store.files import CONTRACT, SELECTION, record_bytes


def write_contract(package: LinkedPackage) -> dict[str, Digest]:
    """Put the contract of a package into the store; return the digests of its files by name."""
    contract = describe_contract(
        str(package.action.package),
        {name: file.path for name, file in package.files.items()},
        package.action.key["toolchain"]["executorch"],
        join_libraries_of(package.units),
    )
    store = package.store
    return {
        CONTRACT: store.put(record_bytes(contract)),
        SELECTION: store.put(format_selection(contract)),
    }
