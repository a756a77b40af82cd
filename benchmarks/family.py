"""Linking a family of packages against lowering it: CPU time in one warm process."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, rounded
from benchmarks.workspaces import REPOSITORY, Sizes

LIMIT = 0.05


def family(folder: Path, sizes: Sizes) -> Result:
    """Measure the adapters of `examples/adapters`.

    Each is lowered and emitted through an empty store. Then shared content is chosen and laid out,
    and each package is linked and written.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    from benchmarks.linking import link
    from pipeline.compile.emit import emit
    from pipeline.compile.lower import lower
    from pipeline.compile.objects import MethodObject, make_object
    from pipeline.compile.sharing import Shared
    from pipeline.config.emission import EmitConfig
    from pipeline.features.families.choice import choose
    from pipeline.features.families.layout import lay_out_files
    from pipeline.features.speedups.patches import fast_lowering
    from pipeline.store.store import Store

    exporter = _load_exporter()
    programs = {
        f"adapter{n}": exporter.export_methods(f"adapter{n}") for n in range(sizes.adapters)
    }

    def compile_all(store: Store) -> dict[str, MethodObject]:
        objects = {}
        for package, own in programs.items():
            with fast_lowering(patches=True):
                lowered = lower(own, {"forward": [XnnpackPartitioner()]})
                objects[package] = make_object(emit(lowered, EmitConfig()), store)
        return objects

    def link_all(objects: dict[str, MethodObject], store: Store) -> int:
        records = {package: [each.to_json()] for package, each in objects.items()}
        chosen = choose(records, {}, [("assistant", ["*"])])
        files = lay_out_files(chosen, list(objects.values()), store)
        shared = Shared(chosen.keys, chosen.constants, files)
        linked = [link([each], store, shared) for each in objects.values()]
        own = sum(files[""].size for files in linked)
        return own + sum(blob.size for stem, blob in linked[0].items() if stem)

    lowering, linking, size = [], [], 0
    for repeat in range(sizes.repeats + 1):  # the first is for warm-up
        store = Store(folder / f"store{repeat}")
        spent, objects = _cpu(partial(compile_all, store))
        lowering.append(spent)
        spent, size = _cpu(partial(link_all, objects, store))
        linking.append(spent)
    ratio = min(linking) / min(lowering)
    return Result(
        case="family",
        ratio=ratio,
        limit=LIMIT,
        ok=ratio <= LIMIT,
        measured=f"{100 * ratio:.1f} % of lowering's CPU time",
        to_reach=f"<= {100 * LIMIT:.0f} %",
        note=f"{sizes.adapters} adapters of one base: linked in {min(linking):.2f} CPU s, lowered "
        f"in {min(lowering):.2f}; {size:,} bytes together",
        figures={"link_cpu": rounded(linking), "lower_cpu": rounded(lowering), "bytes": size},
    )


def _cpu(function: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    made = function()
    return time.process_time() - started, made


def _load_exporter() -> Any:
    path = REPOSITORY / "examples" / "adapters" / "models" / "assistant.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
