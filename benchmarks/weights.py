"""A change to nothing but weights, against a cold build of the same archive by one worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cold import WHISPER, forget_builds, new_package
from benchmarks.measure import BenchmarkError, Result, Run, in_turns, rounded
from benchmarks.workspaces import Sizes

LIMIT, WHISPER_LIMIT = 0.25, 0.10


def weights(folder: Path, sizes: Sizes) -> Result:
    """Measure a whole `doit -n 1 lower` each time, without validation.

    The package was built once before with other weights, so it is known how weights are stored. In
    each turn every floating-point weight changes, to the same value on both sides; the cold side
    has an empty store. Both sides must write the same bytes.

    Raises BenchmarkError if they don't, or if a method was lowered again.
    """
    sides = {package: _measure(folder / package, package, sizes) for package in sizes.retrained}
    shares = {package: _share(sides, package, "cpu") for package in sides}
    limits = {name: WHISPER_LIMIT if name == WHISPER else LIMIT for name in sides}
    worst = max(shares, key=lambda name: shares[name] / limits[name])
    return Result(
        case="weights",
        ratio=shares[worst],
        limit=limits[worst],
        ok=shares[worst] <= limits[worst],
        measured=f"{100 * shares[worst]:.0f} % of a cold build's CPU time ({worst})",
        to_reach=f"<= {100 * LIMIT:.0f} %, Whisper-tiny <= {100 * WHISPER_LIMIT:.0f} %",
        note="; ".join(_describe(sides, name) for name in sides) + "; same bytes",
        figures={name: _figures(*sides[name]) for name in sides},
    )


def _measure(folder: Path, package: str, sizes: Sizes) -> tuple[list[Run], list[Run]]:
    """Return the runs with new weights, and the cold runs."""
    folder.mkdir()
    warm = new_package(folder / "workspace", package)
    (archive,) = (warm.root / "models").glob("*.pt2")
    first = archive.rename(folder / archive.name)
    cold = replace(warm.fresh(folder / "cold"), store=folder / "cold" / ".store")
    change_weights(first, archive, 1)
    warm.doit("-n", "1", "lower")

    def ours(repeat: int) -> Run:
        change_weights(first, archive, 2 + repeat)
        done = warm.doit("-n", "1", "lower")
        if lowered := warm.built("compile"):
            raise BenchmarkError(f"{', '.join(lowered)} was lowered again")
        return done

    def whole(repeat: int) -> Run:
        forget_builds(cold)
        change_weights(first, cold.root / "models" / archive.name, 2 + repeat)
        return cold.doit("-n", "1", "lower")

    sides = in_turns(sizes.retrained_repeats, ours, whole)
    if not warm.files() or warm.files() != cold.files():
        raise BenchmarkError(f"{package}: new weights give other bytes than a cold build")
    return sides[0], sides[1]


def change_weights(archive: Path, changed: Path, edition: int) -> None:
    """Write an archive with new values in every floating-point tensor, determined by `edition`.

    Tensors that methods share stay shared.
    """
    import torch
    from blake3 import blake3
    from torch.export.pt2_archive._package import load_pt2, package_pt2

    programs = load_pt2(str(archive)).exported_programs
    done = set()
    for program in programs.values():
        for name, tensor in [*program.state_dict.items(), *program.constants.items()]:
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            values = tensor.detach()
            if (storage := values.untyped_storage().data_ptr()) in done:
                continue
            done.add(storage)
            # A weight that methods share is loaded once for each of them.
            digest = blake3(values.contiguous().reshape(-1).view(torch.uint8).numpy())
            digest.update(f"{name} {edition}".encode())
            seed = torch.Generator().manual_seed(int.from_bytes(digest.digest(length=7)))
            noise = torch.rand(values.shape, generator=seed)
            values.mul_(1 + noise / 20).add_(noise / 100)
    package_pt2(str(changed), exported_programs=programs)


def _share(sides: dict[str, tuple[list[Run], list[Run]]], package: str, what: str) -> float:
    ours, cold = (min(getattr(run, what) for run in side) for side in sides[package])
    return ours / cold


def _describe(sides: dict[str, tuple[list[Run], list[Run]]], package: str) -> str:
    cpu, wall = (
        [min(getattr(run, what) for run in side) for side in sides[package]]
        for what in ("cpu", "wall")
    )
    share = 100 * _share(sides, package, "cpu")
    return (
        f"{package} {share:.0f} %, {cpu[0]:.1f} of {cpu[1]:.1f} CPU s, "
        f"{wall[0]:.1f} of {wall[1]:.1f} s"
    )


def _figures(ours: list[Run], cold: list[Run]) -> dict[str, Any]:
    return {
        f"{side}_{what}": rounded([getattr(each, what) for each in runs])
        for side, runs in (("ours", ours), ("cold", cold))
        for what in ("cpu", "wall", "peak")
    }
