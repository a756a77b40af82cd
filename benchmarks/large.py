"""Large models: a decoder with the methods `prefill` and `decode`, in float32 and in 4-bit.

They are compared with the plain script, which exports and lowers the same module. Both sides start
from the Python code of the model and draw its weights. Memory is the sum over all processes.
Validation is measured after `doit lower`, since the plain script has none, and so is a run with
nothing to do. Then all weights change twice: the exporter runs again each time, and its new weights
are put into the package.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cold import forget_builds
from benchmarks.measure import BenchmarkError, Result, Run, in_turns, run
from benchmarks.workspaces import Checkout, Sizes, new_checkout

# Arguments of `decoder.make_decoder`, keyed by number of parameters.
DECODERS = {
    "6M": {"layers": 4, "width": 256, "hidden": 1024, "vocabulary": 4000, "prompt": 32},
    "0.4B": {"layers": 24, "width": 1024, "hidden": 4096, "vocabulary": 8000, "prompt": 64},
    "1.5B": {"layers": 24, "width": 2048, "hidden": 7168, "vocabulary": 16000, "prompt": 64},
}
PRECISIONS = ("float32", "4bit")
SCHEME = "{quantizer: torchao, scheme: int8_dynamic_activation_int4_weight, group_size: 32}"
STORE_LIMIT = 2.2  # bytes in the store per byte of the package, in float32
# CPU time of `doit lower` after the first and the second change of all weights, relative to the
# first build, in float32.
WEIGHTS_LIMITS = (0.35, 0.25)
_DECODER = Path(__file__).resolve().parent / "decoder.py"


@dataclass(frozen=True)
class LargeModel:
    """The figures of one decoder in one precision; `differing` counts bytes of the two packages."""

    name: str
    plain: Run
    lower: Run
    validate: Run
    again: Run
    new_weights: tuple[Run, ...]
    package: int
    store: int
    differing: int

    @property
    def memory(self) -> float:
        """Return the peak memory of our processes, relative to the plain script's."""
        return self.lower.peak / self.plain.peak

    @property
    def copies(self) -> float:
        return self.store / self.package

    @property
    def shares(self) -> list[float]:
        """Return the CPU time of each build with new weights, relative to the first build."""
        return [each.cpu / self.lower.cpu for each in self.new_weights]

    def __str__(self) -> str:
        sides = [(name, getattr(self, name)) for name in ("plain", "lower", "validate", "again")]
        sides += [("new weights", each) for each in self.new_weights]
        seconds = ", ".join(
            f"{name} {side.cpu:.0f} CPU s {side.wall:.0f} s {side.peak >> 20} MiB"
            for name, side in sides
        )
        return f"{self.name}: {seconds}, package {self.package:,} bytes, {self.differing:,} differ"


def large(folder: Path, sizes: Sizes) -> Result:
    """Measure large models.

    Raises:
        BenchmarkError: the two packages of a model differ in size, or in content if float32.
    """
    models = [
        _measure(folder / f"{decoder}-{precision}", decoder, precision)
        for decoder in sizes.decoders
        for precision in PRECISIONS
    ]
    floats = [model for model in models if model.name.endswith("float32")]
    copies = max(model.copies for model in floats)
    cpu = {model.name: model.plain.cpu / model.lower.cpu for model in models}
    return Result(
        case="large",
        ratio=min(cpu.values()),
        limit=1.0,
        ok=copies <= STORE_LIMIT and all(map(_within_limits, floats)),
        measured="; ".join(map(_compare, models)),
        to_reach=f"in float32 store <= {STORE_LIMIT:g} x package, memory <= 1 x, new weights "
        f"<= {_percent(WEIGHTS_LIMITS)}",
        note="; ".join(map(str, models)),
        figures={model.name: asdict(model) for model in models},
    )


def _within_limits(model: LargeModel) -> bool:
    shares = zip(model.shares, WEIGHTS_LIMITS, strict=True)
    return model.memory <= 1 and all(share <= limit for share, limit in shares)


def _percent(shares: Sequence[float]) -> str:
    return " and ".join(f"{100 * share:.0f} %" for share in shares)


def _compare(model: LargeModel) -> str:
    cpu, wall = (
        getattr(model.plain, what) / getattr(model.lower, what) for what in ("cpu", "wall")
    )
    return (
        f"{model.name} {cpu:.2f} x less CPU time, {wall:.2f} x faster, "
        f"{model.memory:.2f} x memory, store {model.copies:.2f} x package, "
        f"new weights {_percent(model.shares)}"
    )


def _measure(root: Path, decoder: str, precision: str) -> LargeModel:
    checkout = _new_workspace(root, decoder, precision)
    expected, made = root / "plain.pte", root / "build" / "decoder" / "decoder.pte"
    sizes = json.dumps(DECODERS[decoder])

    def plain(repeat: int) -> Run:
        command = [
            sys.executable,
            "-m",
            "benchmarks.plain_decoder",
            sizes,
            precision,
            str(expected),
        ]
        return run(command, root, checkout.environment)

    def lower(repeat: int) -> Run:
        forget_builds(checkout)
        return checkout.doit("-n", "2", "lower")

    [plain_run], [lower_run] = in_turns(1, plain, lower)
    # Before the store holds anything else.
    stored = sum(path.stat().st_size for path in checkout.store.rglob("*") if path.is_file())
    differing = _count_differing(expected, made)
    if differing and precision == "float32":
        raise BenchmarkError(f"{decoder}: {differing} bytes differ from the plain script's")
    expected.unlink()  # it takes as much room as a build with new weights
    validate, again = (checkout.doit("-n", "2", "--allow", "not-judged") for _ in range(2))
    new_weights = tuple(
        _lower_new_weights(checkout, decoder, precision, seed)
        for seed in range(1, len(WEIGHTS_LIMITS) + 1)
    )
    model = LargeModel(
        name=f"{decoder} {precision}",
        plain=plain_run,
        lower=lower_run,
        validate=validate,
        again=again,
        new_weights=new_weights,
        package=made.stat().st_size,
        store=stored,
        differing=differing,
    )
    print(model, file=sys.stderr, flush=True)  # the others may take a long time
    shutil.rmtree(root)  # to make room for the next one
    return model


def _lower_new_weights(checkout: Checkout, decoder: str, precision: str, seed: int) -> Run:
    """Lower the decoder with other weights. Raises BenchmarkError if a float method is compiled."""
    _write_config(checkout, decoder, precision, seed)
    done = checkout.doit("-n", "2", "lower")
    if precision == "float32" and (compiled := checkout.built("compile")):
        raise BenchmarkError(f"{', '.join(compiled)} was lowered again")
    return done


def _count_differing(one: Path, other: Path) -> int:
    """Return the number of differing bytes. Raises BenchmarkError if the files differ in size."""
    import numpy as np

    if one.stat().st_size != other.stat().st_size:
        raise BenchmarkError(f"{one.stat().st_size} bytes against {other.stat().st_size}")
    first, second = (np.memmap(path, mode="r") for path in (one, other))
    return int(np.count_nonzero(first != second))


def _new_workspace(root: Path, decoder: str, precision: str) -> Checkout:
    checkout = new_checkout(root)
    shutil.copy(_DECODER, root / "models")
    _write_config(checkout, decoder, precision, seed=0)
    return checkout


def _write_config(checkout: Checkout, decoder: str, precision: str, seed: int) -> None:
    export = json.dumps({**DECODERS[decoder], "seed": seed})
    lines = ["model: decoder", "target: android-arm64", f"export: {export}"]
    # Validated as a whole, even on a busy machine.
    lines += ["validate: {budget: 3600}", "methods:"]
    for method in ("prefill", "decode"):
        lines += [f"  {method}:", "    partitioners: [xnnpack]"]
        lines += [f"    quantize: {SCHEME}"] if precision == "4bit" else []
    path = checkout.root / "partition_configs" / "decoder.yaml"
    path.write_text("\n".join([*lines, ""]))
