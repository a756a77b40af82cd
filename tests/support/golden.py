"""Golden files of every report format, rendered from the records in `tests/data/reports`.

`python -m tests.support.golden` rewrites `tests/data/golden`; review the diff afterwards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
REPOSITORY = TESTS.parent
GOLDEN = TESTS / "data" / "golden"


def records() -> dict[str, dict[str, Any]]:
    files = sorted((TESTS / "data" / "reports").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def timeline() -> dict[str, Any]:
    return json.loads((TESTS / "data" / "timeline.json").read_text(encoding="utf-8"))


def entries() -> list[Any]:
    """Return all records, a package that could not be built, and one that was not validated."""
    from pipeline.report.render import Entry

    error = "compile forward: unknown compile option 'force_fp15'; did you mean 'force_fp16'?"
    known = [Entry(name, record) for name, record in records().items()]
    return [*known, Entry("tcn-vulkan", None, error), Entry("wav2vec")]


def sources() -> dict[str, str]:
    """Return the sources of a model that doesn't change when the repository's models do."""
    lines = [f"line {number}" for number in range(1, 121)]
    lines[33] = "        attended = scaled_dot_product_attention(query, key, value)"
    return {"models/seq2seq.py": "\n".join(lines) + "\n"}


def rendered() -> dict[str, bytes]:
    """Return the content of each rendered file, keyed by the name of its golden file."""
    from pipeline.report.render import render, render_all

    made = {}
    for name, record in records().items():
        made |= {f"{name}.{n}": content for n, content in render(record, sources()).items()}
    return made | render_all(entries(), timeline())


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for path in GOLDEN.iterdir():
        path.unlink()
    for name, content in rendered().items():
        (GOLDEN / name).write_bytes(content)


if __name__ == "__main__":
    main()
