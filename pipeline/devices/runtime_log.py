"""Reads the errors and the log of ExecuTorch's runtime, and explains failures from them."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr

# runtime/core/error.h, in words that fit the mistakes of packages.
ERRORS = {
    0x01: "internal error",
    0x02: "invalid state, as where external data (.ptd) is missing",
    0x10: "wrong shape, or not supported",
    0x11: "not implemented",
    0x12: "wrong dtype or number of inputs, or an argument that an operator refused",
    0x13: "wrong type",
    0x14: "missing operator",
    0x20: "missing backend, or data that a delegate needs",
    0x21: "out of memory",
    0x22: "file cannot be read",
    0x23: "corrupt file",
    0x24: "corrupt external data (.ptd)",
    0x25: "out of resources",
    0x30: "delegate of an incompatible version",
    0x31: "delegate out of memory",
    0x32: "invalid delegate handle",
}
# The bindings truncate their errors: with a long method name, the code is cut off. The runtime's
# log still shows a wrong argument.
_MOST_CHARACTERS = 127
_LOG_LINE = re.compile(r"\[(\w+)\.(?:cpp|h|cc):\d+\] (.*)")
_ABOUT_THE_MACHINE = "cpuinfo_utils"  # reads the processor's names when threads start
# How the runtime prints the tensors and arguments of a call, over several lines.
_TENSOR_LINE = re.compile(
    r"dtype: \d+ \| dim order:|\s*dim_order\(\d+\): \d+$|arg \d+ with type id \d+$|[\d\s,\]]*$"
)
# A check around another check that failed: `Check failed (check_cat_args(tensors, dim, out)): `.
_OUTER_CHECK = re.compile(r"Check failed \(\w+\(.*\)\)")
# `KernelCall failed at instruction 0:5 in operator aten::mul.out: 0x12`, in chain 0.
_AT_INSTRUCTION = re.compile(r"failed at instruction (?:\d+:)?(\d+)")
_MOST_LINES = 3  # of the runtime's log, before the line with the instruction
_LOG_LOCK = threading.RLock()


@contextmanager
def runtime_log(lines: list[str]) -> Iterator[None]:
    """Collect the runtime's messages within the context, without their source positions.

    They name the missing operator or the wrong size, for which an error only has a code. Messages
    about the machine, which explain no error, are left out. The bindings print them to
    `sys.stderr`; other output there is printed again afterwards.
    """
    stderr = io.StringIO()
    try:
        with _LOG_LOCK, redirect_stderr(stderr):
            yield
    finally:
        for line in stderr.getvalue().splitlines():
            message = _LOG_LINE.match(line)
            if message is None:
                print(line, file=sys.stderr)
            elif message.group(1) != _ABOUT_THE_MACHINE:
                lines.append(message.group(2))


def error_code(message: str) -> int | None:
    """Return the code in an error of the bindings, or None if it has none or may be truncated."""
    if len(message) >= _MOST_CHARACTERS:
        return None
    code = re.search(r"error:? 0x:?([0-9a-fA-F]+)", message)
    return int(code[1], 16) if code else None


def explain_failure(log: Sequence[str]) -> tuple[list[str], int | None]:
    """Return the lines of the runtime's log that explain a failure, and the failed instruction.

    The line with the instruction's number comes last and is always included, preceded by at most
    three others. The number is None if the log has none.
    """
    instruction_lines: list[str] = []
    inner_checks: list[str] = []
    explanations: list[str] = []
    for line in log:
        if _TENSOR_LINE.match(line):
            continue
        line = line.rstrip(" .:")
        if _AT_INSTRUCTION.search(line):
            instruction_lines.append(line)
            continue
        explanations.append(line)
        if not _OUTER_CHECK.fullmatch(line):
            inner_checks.append(line)
    lines = (inner_checks or explanations)[:_MOST_LINES]
    if not instruction_lines:
        return lines, None
    first = instruction_lines[0]
    number = _AT_INSTRUCTION.search(first)
    assert number is not None
    return [*lines, first], int(number[1])
