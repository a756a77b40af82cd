"""Records which messages of tools/reference/errors.toml a test must provoke, and whether it did."""

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
    """Return the messages that a test must provoke, given its pytest node."""
    by_test = _by_test()
    return [*by_test.get(node, ()), *by_test.get(node.partition("[")[0], ())] if node else []


def is_like(text, message):
    """Return whether a text contains a message, in which … matches anything."""
    pattern = ".*".join(map(re.escape, message.split("…")))
    return re.search(pattern, text, re.DOTALL) is not None


@contextmanager
def recorded_errors():
    """Yield a list that holds the texts of all errors made within the block, once it has ended.

    It gathers the errors of this process and its forks, and the errors and warnings of other
    processes that this process shows.
    """
    texts = []
    show_error = error_codes.show_error
    originals = {kind: kind.__init__ for kind in (errors.PipelineError, errors.Problem)}

    def record(kind):
        def make(self, *arguments, **named):
            if kind is errors.Problem:  # a tuple, which is complete by now
                write(str(self))
            else:
                originals[kind](self, *arguments, **named)
                write("\n".join(map(str, arguments)))

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
