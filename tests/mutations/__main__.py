"""`python -m tests.mutations [--seeds N] [--only PART]`: what validation makes of every damage."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from fnmatch import fnmatch

from .score import Judges, table

parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
parser.add_argument("--seeds", type=int, default=2, help="of each damage of each package")
parser.add_argument("--only", default="*", help="a pattern of `sample/damage`")
parser.add_argument("--json", help="also writes every verdict to this file, one a line")
arguments = parser.parse_args()

with Judges() as judges, open(arguments.json or os.devnull, "w") as record:
    verdicts = []
    for job in judges.jobs(range(arguments.seeds)):
        if not fnmatch(f"{job[0]}/{job[1]}", arguments.only):
            continue
        verdict = judges.judge(*job)
        if verdict is not None:
            verdicts.append(verdict)
            record.write(json.dumps(verdict) + "\n")
            record.flush()
            if verdict["outcome"] not in ("caught", "equivalent", "tolerated"):
                print(json.dumps({k: v for k, v in verdict.items() if k != "culprits"}), flush=True)
print(table(verdicts))
print(dict(Counter(v["outcome"] for v in verdicts)))
sys.exit(any(v["outcome"] == "survived" for v in verdicts))
