"""Builds packages of trained models, validates them, and measures how well they do their tasks.

python -m examples.trained voice_detector     build the packages of these models
python -m examples.trained --all              build all packages, in about a quarter of an hour
python -m examples.trained --table            write docs/guides/gallery.md from the records
"""

from __future__ import annotations

import argparse
import sys

from examples.trained import build, table


def main() -> int:
    """Run the command; return 1 if a package fails, or does its task worse than its limit."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.trained",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(build.models()))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    chosen = build.models() if options.all else list(options.models)
    if unknown := [name for name in chosen if name not in build.models()]:
        parser.error(f"no model: {', '.join(unknown)}; known: {', '.join(build.models())}")
    if not chosen and not options.table:
        parser.print_help()
    records = [record for model in chosen for record in build.build(model)]
    for record in records:
        build.keep(record)
        print(record)
    if options.table:
        table.write(build.read_records())
    return int(not all(record.good for record in records))


if __name__ == "__main__":
    sys.exit(main())
