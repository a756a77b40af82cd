"""The keys of a file targets/<name>.yaml."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.options import read_descriptions
from pipeline.features.contracts.targets import TargetFile
from tools.reference.markdown import row

EXAMPLES = {
    "kernels": "[portable, quantized]",
    "operators": "[team::scale.out, {aten::add.out: [float32]}]",
    "dtypes": "[float32, int64, bool]",
    "backends": "[xnnpack]",
    "executorch": "1.4.1",
    "runtime": "et13",
    "identifier": "ET12",
    "schema_version": "0",
    "memory": "{1: 256kB, 2: 8MB}",
    "alignment": "16",
    "devices": "[native, 'qemu:cortex-a72', pi5]",
}


def targets() -> Iterator[str]:
    """Yield the table of all keys."""
    yield "| key | meaning | example |"
    yield "|---|---|---|"
    descriptions = read_descriptions(TargetFile)
    for name, field in TargetFile.model_fields.items():
        text = field.description or descriptions.get(name, "")
        meaning = " ".join(text.split())
        yield row(f"`{name}`", meaning, f"`{name}: {EXAMPLES[name]}`")
