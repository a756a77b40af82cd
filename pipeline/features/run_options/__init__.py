"""Options that people know from make and pytest, and patterns in place of any package name.

words.py        rewrites a command line without these options
selection.py    the packages and methods that `-k` and `--last-failed` select
quiet.py        the console of `-q`
"""

from __future__ import annotations

from pipeline.moments import Feature

SELECTING = {
    "-k EXPRESSION": "select packages and methods whose `package/method` contains a word or "
    "matches a pattern: -k 'enc* and not int8'",
    "--last-failed": "select the packages that failed in the last run, or all if none failed",
}
RUNNING = {
    "-j, --jobs NUMBER": "same as -n",
    "-x, --fail-fast": "start no more actions after the first failure",
    "-q, --quiet": "print only failures, warnings and verdicts",
}
FEATURE = Feature(
    "run_options",
    "accept -j, -k, -q, --fail-fast and --last-failed, and patterns in every command",
    rewrite_words="pipeline.features.run_options.words:rewrite",
    option_help={**SELECTING, **RUNNING},
    reporters={"quiet": "pipeline.features.run_options.quiet:QuietReporter"},
)
