"""Which messages of tools/reference/errors.toml a test provokes, and whether it did."""

import json
import os
import re
import tempfile
from contextlib import contextmanager
from functools import cache

from pipeline.features.help import error_codes
from pipeline.store import errors
from tools.reference.errors import entries


@cache
def _by_test():
    messages = {}
    for entry in entries():
        messages.setdefault(entry.test, []).append(entry.message)
    return messages


def find_expected(node):
    """Return the messages that a test, by its pytest node, must provoke."""
    by_test = _by_test()
    return [*by_test.get(node, ()), *by_test.get(node.partition("[")[0], ())] if node else []


def is_like(text, message):
    """Tell whether a text has a message, with … for anything."""
    pattern = ".*".join(map(re.escape, message.split("…")))
    return re.search(pattern, text, re.DOTALL) is not None


@contextmanager
def recorded_errors():
    """Within the block, gather the texts of the errors that this process and its forks make, and of
    the errors and warnings of other processes that this one shows; they are in the list that it
    yields once the block has ended."""
    texts = []
    show_error = error_codes.show_error
    originals = {kind: kind.__init__ for kind in (errors.PipelineError, errors.Problem)}

    def record(kind):
        def make(self, *arguments, **named):
            originals[kind](self, *arguments, **named)
            text = str(self) if kind is errors.Problem else "\n".join(map(str, arguments))
            write(text)

        return make

    def show(text, kind=""):
        write(text)
        return show_error(text, kind)

    def write(text):
        os.write(log.fileno(), f"{json.dumps(text)}\n".encode())

    with tempfile.TemporaryFile() as log:
        for kind in originals:
            kind.__init__ = record(kind)
        error_codes.show_error = show
        try:
            yield texts
        finally:
            for kind, make in originals.items():
                kind.__init__ = make
            error_codes.show_error = show_error
        log.seek(0)
        texts += map(json.loads, log.read().splitlines())
