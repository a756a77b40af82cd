"""Builds packages of the gallery and compares each with ExecuTorch's own call.

python -m examples llama vit     build these packages
python -m examples --part        build one package, chosen by the commit's hash
python -m examples --all         build all packages, in about half an hour on two cores
python -m examples --table       write docs/guides/gallery.md from the records
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from examples import build, table


def main() -> int:
    """Run the command; return 1 if a package fails, differs from the joint call, or isn't valid."""
    parser = argparse.ArgumentParser(
        prog="python -m examples",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(build.packages()))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--part", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    chosen = build.packages() if options.all else list(options.packages)
    chosen += [part(turn())] if options.part else []
    if unknown := [name for name in chosen if name not in build.packages()]:
        parser.error(f"no package: {', '.join(unknown)}; known: {', '.join(build.packages())}")
    if not chosen and not options.table:
        parser.print_help()
    good = [_build(package) for package in chosen]
    if options.table:
        table.write(build.read_records())
    return int(not all(good))


def turn(repository: Path = build.HERE) -> int:
    """Return the hash of the commit as a number, or 0 if there is no commit.

    Even a shallow checkout knows the hash, so the same commit always builds the same package.
    """
    command = ["git", "-C", str(repository), "rev-parse", "--verify", "--quiet", "HEAD"]
    return int(subprocess.run(command, capture_output=True, text=True).stdout.strip() or "0", 16)


def part(turn: int) -> str:
    """Return the package for a hash; all packages are equally likely."""
    names = build.packages()
    return names[turn % len(names)]


def _build(package: str) -> bool:
    try:
        record = build.build(package)
    except build.BuildError as error:
        print(f"{package}: failed\n{error}", flush=True)
        return False
    build.keep(record)
    verdict = "validated" if record.valid else "NOT VALID"
    bytes_ = "the bytes of the joint call" if record.same_bytes else "OTHER BYTES"
    figures = f"{record.delegated_nodes} of {record.nodes} nodes delegated, {record.size} bytes"
    times = f"{record.seconds:.0f} CPU s, joint call {record.joint_seconds:.0f}"
    print(f"{package}: {verdict}, {bytes_}; {figures}; {times}", flush=True)
    return record.valid and record.same_bytes


if __name__ == "__main__":
    sys.exit(main())
