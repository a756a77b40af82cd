"""The packages of this repository, made by the plain script, and by doit from a filled store.

Their models are Python files that export, which the plain script would have to run as well. It gets
archives instead, which favors it. doit is measured with both.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import BenchmarkError, Result, Run, best, rounded, run
from benchmarks.workspaces import (
    REPOSITORY,
    Checkout,
    Sizes,
    export_archives,
    quiet,
    shipped_archives,
    shipped_exporters,
)

FRESH_LIMIT, AGAIN_LIMIT = 50.0, 5.0
PLAIN = REPOSITORY / "benchmarks" / "plain.py"


@dataclass(frozen=True)
class Shipped:
    """Both workspaces after a build, and the time of the plain script.

    The script is timed only once, since it takes longer than anything else. `same` counts its
    `.pte` and `.ptd` files that equal doit's.
    """

    exporters: Checkout
    archives: Checkout
    cold: Run
    plain: Run
    files: int
    same: int


def build(folder: Path, sizes: Sizes) -> Shipped:
    """Build both workspaces in `folder`, or return them if an earlier case has built them."""
    if folder not in _built:
        shutil.rmtree(folder, ignore_errors=True)  # left by a build that failed
        folder.mkdir()
        _built[folder] = _build(folder, sizes)
    return _built[folder]


_built: dict[Path, Shipped] = {}


def _build(folder: Path, sizes: Sizes) -> Shipped:
    exporters = shipped_exporters(folder / "exporters", sizes.shipped)
    cold = exporters.doit("lower")
    archives = shipped_archives(folder / "archives", sizes.shipped, exporters.store)
    archives.doit("lower")
    plain, out = _plain(archives, folder / "plain", sizes.shipped)
    files = archives.files()
    same = sum(files.get(name) == content for name, content in out.files().items())
    return Shipped(exporters, archives, cold, plain, len(files), same)


def _plain(checkout: Checkout, root: Path, packages: tuple[str, ...]) -> tuple[Run, Checkout]:
    out = root / "build"
    folders = [str(checkout.root / name) for name in ("models", "partition_configs")]
    command = [sys.executable, str(PLAIN), *folders, str(out), *packages]
    return run(command, checkout.root, checkout.environment), Checkout(root, checkout.store)


def _told(shipped: Shipped) -> dict[str, object]:
    return {
        "plain_seconds": shipped.plain.wall,
        "plain_cpu_seconds": shipped.plain.cpu,
        "cold_seconds": shipped.cold.wall,
        "files": shipped.files,
        "files_same_as_plain": shipped.same,
    }


def fresh_checkout(folder: Path, sizes: Sizes) -> Result:
    """Measure a checkout without a build, whose packages are all in the store.

    The slower of the two forms of models is judged.
    """
    shipped = build(folder.parent / "shipped", sizes)
    runs: dict[str, list[Run]] = {}
    silent = True
    for form, checkout in (("exporters", shipped.exporters), ("archives", shipped.archives)):
        copies = [checkout.fresh(folder / f"{form}{n}") for n in range(sizes.turns)]
        runs[form] = [copy.doit("lower") for copy in copies]
        if any(copy.files() != checkout.files() for copy in copies):
            raise BenchmarkError("a fresh checkout got other files")
        silent = silent and quiet(checkout.fresh(folder / form).imported("lower"))
    ours = max(best(each) for each in runs.values())
    ratio = shipped.plain.wall / ours
    return Result(
        case="fresh-checkout",
        ratio=ratio,
        limit=FRESH_LIMIT,
        ok=ratio >= FRESH_LIMIT and silent,
        measured=f"{ratio:.0f} x faster, torch {'not ' * silent}imported",
        to_reach=f">= {FRESH_LIMIT:g} x faster, torch not imported, no worker",
        note=f"{len(sizes.shipped)} packages in {ours:.2f} s, plain {shipped.plain.wall:.0f} s; "
        f"{shipped.same} of {shipped.files} files are those of the plain script",
        figures={
            **_told(shipped),
            "torch_imported_or_worker_started": not silent,
            **{f"{form}_seconds": rounded([r.wall for r in each]) for form, each in runs.items()},
        },
    )


def exported_again(folder: Path, sizes: Sizes) -> Result:
    """Measure new archives of the same programs, in a workspace that has been built.

    With exporters, whose files get another comment, doit also runs the exports
    (`exporters_seconds`).
    """
    shipped = build(folder.parent / "shipped", sizes)
    archives = Checkout(_copy(shipped.archives, folder / "archives"), shipped.archives.store)
    exporters = Checkout(_copy(shipped.exporters, folder / "exporters"), shipped.exporters.store)
    for checkout in (archives, exporters):
        checkout.doit("lower")  # files moved, so their digests are remembered anew
    runs = []
    for repeat in range(sizes.repeats):
        _export_anew(archives, sizes, 1 + repeat)
        runs.append(_no_compile(archives))
    for path in (exporters.root / "models").glob("*.py"):
        path.write_text(path.read_text(encoding="utf-8") + "\n# Touched.\n", encoding="utf-8")
    touched = _no_compile(exporters)
    _export_anew(archives, sizes, 1 + sizes.repeats)
    silent = quiet(archives.imported("lower"))
    ratio = shipped.plain.wall / best(runs)
    return Result(
        case="exported-again",
        ratio=ratio,
        limit=AGAIN_LIMIT,
        ok=ratio >= AGAIN_LIMIT,
        measured=f"{ratio:.0f} x faster, nothing compiled",
        to_reach=f">= {AGAIN_LIMIT:g} x faster, nothing compiled",
        note=f"{best(runs):.2f} s, plain {shipped.plain.wall:.0f} s; "
        f"from exporters {touched.wall:.1f} s, exports included",
        figures={
            **_told(shipped),
            "archives_seconds": rounded([each.wall for each in runs]),
            "exporters_seconds": touched.wall,
            "torch_imported_or_worker_started": not silent,
        },
    )


def _copy(checkout: Checkout, root: Path) -> Path:
    ignored = shutil.ignore_patterns(checkout.store.name)
    return Path(shutil.copytree(checkout.root, root, ignore=ignored))


def _export_anew(checkout: Checkout, sizes: Sizes, edition: int) -> None:
    """Export again. Raises BenchmarkError if the bytes stay the same: nothing to measure."""
    models = sorted((checkout.root / "models").glob("*.pt2"))
    before = [path.read_bytes() for path in models]
    export_archives(checkout, sizes.shipped, edition)
    if any(path.read_bytes() == old for path, old in zip(models, before, strict=True)):
        raise BenchmarkError("an archive that was exported again has the same bytes")


def _no_compile(checkout: Checkout) -> Run:
    """Run doit. Raises BenchmarkError if it compiles, links or queries the cache."""
    before = checkout.preprocessed()
    done = checkout.doit("lower")
    compiled = checkout.built("compile") + checkout.built("link")
    if compiled or checkout.preprocessed() != before:
        raise BenchmarkError(f"exported again without a change, and yet built: {compiled}")
    return done
