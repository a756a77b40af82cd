"""Changes to one method among several, and to one layer in a large method."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.measure import BenchmarkError, Result, Run, best, in_turns, rounded
from benchmarks.models import AverageAttention, Encoder, exported, write_archive
from benchmarks.workspaces import Checkout, Sizes, new_checkout, write_config

ONE_METHOD_LIMIT = 1.15


def one_method(folder: Path, sizes: Sizes) -> Result:
    """Compare changing one of N methods with building that method as a package by itself.

    Both sides run a whole `doit lower`: starting doit, checking the archive, starting a worker,
    compiling the method, linking its package. Neither can avoid these, so the ratio shows what the
    other N - 1 methods cost: their archive is read again to see that they haven't changed, and
    their objects are linked again. In each turn, the changed method gets all new weights, the same
    on both sides, so none of them is in the store. The other side starts with an empty store.
    """
    names = [f"method{number}" for number in range(sizes.changed_of)]
    programs = {name: exported(Encoder(seed)) for seed, name in enumerate(names)}
    many, alone = new_checkout(folder / "many"), new_checkout(folder / "alone")
    write_config(many, "package", "model", names)
    write_config(alone, "package", "model", names[:1])
    write_archive(many.root / "models" / "model.pt2", programs)
    many.environment["PTE_PIPELINE_REFIT"] = "0"  # measured by `weights`
    first = many.doit("lower")
    changed = [exported(Encoder(1000 + repeat)) for repeat in range(sizes.repeats)]

    def one_of_many(repeat: int) -> Run:
        # In the middle of the archive, where the order gives no advantage.
        programs[names[len(names) // 2]] = changed[repeat]
        write_archive(many.root / "models" / "model.pt2", programs)
        done = many.doit("lower")
        _expect(many, [f"package/{names[len(names) // 2]}"])
        return done

    def by_itself(repeat: int) -> Run:
        for left in (alone.root / "build", alone.store):
            shutil.rmtree(left, ignore_errors=True)
        write_archive(alone.root / "models" / "model.pt2", {names[0]: changed[repeat]})
        done = alone.doit("lower")
        _expect(alone, [f"package/{names[0]}"])
        return done

    ours, least = in_turns(sizes.repeats, one_of_many, by_itself)
    ratio = best(ours) / best(least)
    cpu_ratio = min(each.cpu for each in ours) / min(each.cpu for each in least)
    return Result(
        case="one-method",
        ratio=ratio,
        limit=ONE_METHOD_LIMIT,
        ok=ratio <= ONE_METHOD_LIMIT,
        measured=f"{ratio:.2f} x",
        to_reach=f"<= {ONE_METHOD_LIMIT:g} x",
        note=f"1 of {len(names)} methods in {best(ours):.1f} s, alone {best(least):.1f} s, "
        f"all {first.wall:.1f} s; of CPU time {cpu_ratio:.2f} x",
        figures={
            "methods": len(names),
            "changed_seconds": rounded([each.wall for each in ours]),
            "changed_cpu_seconds": rounded([each.cpu for each in ours]),
            "alone_seconds": rounded([each.wall for each in least]),
            "alone_cpu_seconds": rounded([each.cpu for each in least]),
            "cpu_ratio": cpu_ratio,
            "cold_seconds": first.wall,
        },
    )


def _expect(checkout: Checkout, methods: list[str]) -> None:
    compiled = checkout.built("compile")
    if compiled != methods:
        raise BenchmarkError(f"compiled {compiled}, where {methods} changed")


def one_partition(folder: Path, sizes: Sizes) -> Result:
    """Count calls of XNNPACK's preprocess function for partitions that aren't in the store.

    Each layer of the model is one partition. First the weights of one layer change, so one call is
    necessary. Then an operator that belongs to no partition is inserted before the first layer, so
    no call is necessary. The ratio is the number of all calls to the number of necessary ones.
    """
    checkout = new_checkout(folder / "workspace")
    checkout.environment["PTE_PIPELINE_REFIT"] = "0"
    write_config(checkout, "package", "model", ["forward"])
    changed = sizes.layers // 2
    models = {
        "cold": AverageAttention(sizes.layers),
        "layer": AverageAttention(sizes.layers, changed),
        "earlier": AverageAttention(sizes.layers, changed, earlier=True),
    }
    seconds, calls = {}, {}
    for name, model in models.items():
        write_archive(checkout.root / "models" / "model.pt2", {"forward": exported(model)})
        hits, misses = checkout.preprocessed()
        seconds[name] = checkout.doit("lower").wall
        _expect(checkout, ["package/forward"])
        total_hits, total_misses = checkout.preprocessed()
        calls[name] = total_misses - misses
        seen = calls[name] + total_hits - hits
        if seen != sizes.layers:
            raise BenchmarkError(f"{name}: {seen} partitions through the cache, not {sizes.layers}")
    due = 1
    ratio = (calls["layer"] + calls["earlier"]) / due
    return Result(
        case="one-partition",
        ratio=ratio,
        limit=1.0,
        ok=calls["layer"] == due and calls["earlier"] == 0,
        measured=f"{calls['layer']} and {calls['earlier']} calls",
        to_reach=f"{due} and 0 calls",
        note=f"{sizes.layers} partitions; a layer changed, then an operator put before all; "
        + ", ".join(f"{name} {wall:.1f} s" for name, wall in seconds.items()),
        figures={"partitions": sizes.layers, "calls": calls, "seconds": seconds},
    )
