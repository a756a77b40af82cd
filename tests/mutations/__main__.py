"""`python -m tests.mutations [--seeds N] [--only PART]`: validation's verdict on every damage."""

from __future__ import annotations

import argparse
import json
import os
import sys
from fnmatch import fnmatch

from .score import Judges, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="of each damage of each package")
    parser.add_argument("--only", default="*", help="a pattern of `sample/damage`")
    parser.add_argument("--json", help="also writes every verdict to this file, one a line")
    arguments = parser.parse_args()
    verdicts = []
    with Judges() as judges, open(arguments.json or os.devnull, "w") as record:
        for job in judges.jobs(range(arguments.seeds)):
            verdict = judges.judge(*job) if fnmatch("/".join(job[:2]), arguments.only) else None
            if verdict is not None:
                verdicts.append(verdict)
                print(json.dumps(verdict), file=record, flush=True)
                if verdict["outcome"] not in ("caught", "equivalent", "tolerated"):
                    del verdict["culprits"]
                    print(json.dumps(verdict), flush=True)
    print(table(verdicts))
    return any(verdict["outcome"] == "survived" for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())
