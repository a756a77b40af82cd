"""Compares `doit tune` with an exhaustive search, on small spaces of trained models.

python -m examples.trained.tuning voice_detector    measure these models
python -m examples.trained.tuning --table           write docs/guides/find-the-best-package.md

Each model has a workspace and a store in a temporary folder. `doit tune` runs first and lowers what
it needs; `doit tune --all` then lowers the rest. The measurements are kept in
`examples/trained/tuning.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from examples.trained.measures import HERE

ROOT = HERE.parents[1]
RECORDS = HERE / "tuning.json"
PAGE = ROOT / "docs" / "guides" / "find-the-best-package.md"
BEGIN = "<!-- python -m examples.trained.tuning --table -->\n"
END = "<!-- end of tuned models -->\n"
HEADINGS = (
    *("model", "combinations", "lowerings", "share of all", "best", "best, exhaustive search"),
    *("SQNR, floor", "held out"),
)
PARTITIONERS: list[Any] = [["xnnpack"], [{"xnnpack": {"per_op_mode": True}}], []]
EDGE: list[Any] = [None, {"keep_ranges": True}]


def _static(**options: Any) -> dict[str, Any]:
    return {"quantizer": "xnnpack", "per_channel": True, **options}


_NO_STFT = {"modules": {"stft_conv": "none"}}
_NO_ADD = {"operators": {"add": "none"}}
_NO_MELS = {"modules": {"layers.0.from_input": "none"}}
_NO_ENDS = {"modules": {"_conv_stem": "none", "_blocks.0": "none", "_conv_head": "none"}}
_NO_FIRST_LAYER = {"modules": {"bert.encoder.layer.0": "none"}}
_TORCHAO = {
    "quantizer": "torchao",
    "scheme": "int8_dynamic_activation_int8_weight",
    "group_size": 0,
}


def _dynamic(**options: Any) -> dict[str, Any]:
    return {"quantizer": "xnnpack", "dynamic": True, "per_channel": True, **options}


def _torchao4(embedding_bits: int, **options: Any) -> dict[str, Any]:
    """Return torchao's 8da4w: 4-bit weights, dynamic 8-bit activations, and these embeddings."""
    scheme = "int8_dynamic_activation_int4_weight"
    embedding = {"bits": embedding_bits}
    return {"quantizer": "torchao", "scheme": scheme, "embedding": embedding, **options}


# The methods, the floor in dB, the number of trials and the space of each model.
SPACES: dict[str, tuple[dict[str, Any], float, int, dict[str, list[Any]]]] = {
    "voice_detector": (
        {"step": {}},
        25,
        7,
        {
            "defaults.quantize": [
                *(None, _static(), _static(per_channel=False), _static(**_NO_ADD)),
                *(_static(**_NO_STFT), _static(**_NO_STFT, **_NO_ADD)),
            ],
            "defaults.partitioners": PARTITIONERS,
            "defaults.edge": EDGE,
        },
    ),
    "pitch_tracker": (
        {"pitch": {}, "features": {}},
        20,
        4,
        {
            "defaults.quantize": [
                *(None, _static(), _static(per_channel=False)),
                _static(operators={"conv2d": "none"}),
            ],
            "defaults.partitioners": PARTITIONERS,
            "defaults.edge": EDGE,
        },
    ),
    "speaker_encoder": (
        {"listen": {}, "embed": "omit", "compare": "omit"},
        15,
        3,
        {
            "defaults.quantize": [
                *(None, _dynamic(), _dynamic(**_NO_MELS), _static(), _static(**_NO_MELS)),
                *(_dynamic(per_channel=False), _dynamic(per_channel=False, **_NO_MELS)),
                _TORCHAO,
            ],
            "defaults.partitioners": PARTITIONERS[:2],
        },
    ),
    "sentence_encoder": (
        {"encode": {}, "score": "omit"},
        15,
        3,
        {
            "defaults.quantize": [
                *(None, _TORCHAO, _dynamic()),
                *({**_TORCHAO, "embedding": {"bits": bits}} for bits in (8, 4)),
                *(_torchao4(8), _torchao4(4), _torchao4(8, **_NO_FIRST_LAYER)),
            ],
            "defaults.partitioners": PARTITIONERS[:2],
        },
    ),
    "image_classifier": (
        {"classify": {}, "embed": "omit"},
        20,
        3,
        {
            "defaults.quantize": [
                *(None, _static(), _static(per_channel=False), _static(**_NO_ADD)),
                *(_static(**_NO_ENDS), _static(**_NO_ADD, **_NO_ENDS), _dynamic()),
                _static(operators={"conv2d": "none"}),
            ],
            "defaults.partitioners": PARTITIONERS[:2],
        },
    ),
}


def make_workspace(model: str, folder: Path) -> None:
    """Write a workspace with the model, and a package with its space."""
    methods, floor, trials, space = SPACES[model]
    for name in ("dodo.py", "models", "metrics", "wheels"):
        (folder / name).symlink_to(HERE / name)
    config = {
        "model": model,
        "defaults": {"partitioners": ["xnnpack"]},
        "methods": methods,
        "tune": {
            "space": space,
            "objectives": {"size": "min", "sqnr": "max"},
            "limits": {"min_sqnr": floor},
            "trials": trials,
        },
        "validate": {
            "inputs": 0,
            "cases": [],
            "latency": {"seconds": 0},
            "allow": ["not-judged"],
            "min_sqnr": 0,  # a quantization limit: the floor of the search decides
        },
    }
    if model == "pitch_tracker":
        config["export"] = {"capacity": "tiny"}
    configs = folder / "partition_configs"
    configs.mkdir()
    (configs / f"{model}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def tune(model: str, folder: Path, *options: str) -> dict[str, Any]:
    """Run `doit tune` and return its record, with the `lowerings` and `seconds` that it took.

    Raises:
        SystemExit: `doit tune` failed.
    """
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search, "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "doit", "tune", model, *options]
    started = time.monotonic()
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{model}:\n{(run.stdout + run.stderr)[-3000:]}")
    record = json.loads((folder / "build" / f"tune-{model}.json").read_text())
    (line,) = [line for line in run.stdout.splitlines() if " compiled in " in line]
    record["lowerings"] = int(line.split()[0])
    record["seconds"] = round(time.monotonic() - started)
    return record


def measure(model: str) -> dict[str, Any]:
    """Search the space of a model with `doit tune` and exhaustively, and return both records."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_workspace(model, folder)
        searched = tune(model, folder)
        everything = tune(model, folder, "--all")
    everything["lowerings"] += searched["lowerings"]  # found in the store
    return {"searched": _shorten(searched), "exhaustive": _shorten(everything)}


def _shorten(record: dict[str, Any]) -> dict[str, Any]:
    trials = []
    for trial in record["trials"]:
        values = "; ".join(
            json.dumps(value, separators=(",", ":")) for value in trial["values"].values()
        )
        figures = {name: round(value, 1) for name, value in trial["figures"].items()}
        shown = {"trial": trial["trial"], "values": values, **figures, "front": trial["front"]}
        shown |= {f"{name} (held out)": round(v, 1) for name, v in trial["held_out"].items()}
        if trial["faults"]:
            shown["fault"] = trial["faults"][0].split("; ")[0]
        trials.append(shown)
    names = ("best", "limits", "seed", "lowerings", "seconds")
    return {**{name: record[name] for name in names}, "trials": trials}


def table(records: dict[str, Any]) -> str:
    """Return the table of all measured models, in Markdown."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS)]
    rows += [_row(model, records[model]) for model in sorted(records)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(model: str, record: dict[str, Any]) -> tuple[str, ...]:
    searched, everything = record["searched"], record["exhaustive"]
    best, least = _find_best(searched), _find_best(everything)
    share = searched["lowerings"] / everything["lowerings"]
    return (
        f"`{model}`",
        str(len(everything["trials"])),
        f"{searched['lowerings']} of {everything['lowerings']}",
        f"{share:.1%}".replace("%", " %"),
        f"{best['size'] / 1000:.1f} kB",
        f"{least['size'] / 1000:.1f} kB",
        f"{best['sqnr']} dB, {searched['limits']['min_sqnr']:g} dB",
        f"{best['sqnr (held out)']} dB",
    )


def _find_best(record: dict[str, Any]) -> dict[str, Any]:
    return next(trial for trial in record["trials"] if trial["trial"] == record["best"])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.trained.tuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(SPACES))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    for model in options.models:
        records[model] = measure(model)
        RECORDS.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
        print(*_row(model, records[model]), sep="  ", flush=True)
    if options.table:
        text = PAGE.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        tail = rest.partition(END)[2]
        PAGE.write_text(head + BEGIN + table(records) + END + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
