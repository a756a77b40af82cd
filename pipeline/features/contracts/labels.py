"""Finds target labels that are probably misspelled, because they are close to another name."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Common names of devices. A label in a config may differ from all of them.
KNOWN_LABELS = (
    *(
        "android-arm64",
        "android-arm",
        "android-x86_64",
        "android-x64",
        "android-arm64-v8a",
    ),
    *(
        "ios-arm64",
        "ios-simulator",
        "macos-arm64",
        "macos-x86_64",
        "macos-x64",
        "tvos-arm64",
    ),
    *("watchos-arm64", "visionos-arm64", "linux-x86_64", "linux-x64", "linux-arm64"),
    *("linux-aarch64", "linux-armv7", "linux-riscv64", "windows-x86_64", "windows-x64"),
    *(
        "windows-arm64",
        "raspberry-pi",
        "cortex-m",
        "cortex-a",
        "ethos-u55",
        "ethos-u65",
    ),
    *(
        "ethos-u85",
        "android",
        "iphone",
        "macos",
        "linux",
        "windows",
        "hexagon",
        "zephyr",
    ),
)
_SEPARATORS = r"[-_./ ]+"
_SHORTEST = 4  # least characters of a misspelled part: `a55` and `a53` are two devices
_LONG = 6  # from this length on, two letters may be wrong


def near_labels(label: str, labels: Iterable[str]) -> list[str]:
    """Return the labels of which the given one may be a misspelling, in their order."""
    near = []
    for candidate in dict.fromkeys(labels):
        if candidate != label and _is_misspelled(label, candidate):
            near.append(candidate)
    return near


def _is_misspelled(label: str, meant: str) -> bool:
    """Return whether each part of a label equals or nearly equals the same part of another.

    Labels that differ only in digits, or in short parts, name two devices.
    """
    parts = re.split(_SEPARATORS, label.casefold())
    meant_parts = re.split(_SEPARATORS, meant.casefold())
    if "".join(parts) == "".join(meant_parts):
        return True
    if len(parts) != len(meant_parts):
        return False
    for part, meant_part in zip(parts, meant_parts, strict=True):
        if part != meant_part and not _is_typo(part, meant_part):
            return False
    return True


def _is_typo(part: str, meant_part: str) -> bool:
    if sorted(part) == sorted(meant_part):
        return len(part) >= _SHORTEST
    shortest = min(len(part), len(meant_part))
    if shortest < _SHORTEST or part[0] != meant_part[0]:
        return False  # people get the first letter right: `phone` isn't `iphone`
    if _without_digits(part) == _without_digits(meant_part):
        return False
    most = 1
    if min(len(part), len(meant_part)) >= _LONG:
        most = 2
    return _distance(part, meant_part) <= most


def _without_digits(text: str) -> str:
    return re.sub(r"\d", "", text)


def _distance(text: str, target: str) -> int:
    """Return the optimal string alignment distance.

    This is the number of letters that are missing, added, swapped or wrong.
    """
    before: list[int] = []
    row = list(range(len(target) + 1))
    for i, letter in enumerate(text, 1):
        last = before
        before = row
        row = [i]
        for j, theirs in enumerate(target, 1):
            cost = min(
                before[j] + 1,
                row[j - 1] + 1,
                before[j - 1] + (letter != theirs),
            )
            has_pair = i > 1 and j > 1
            if has_pair and letter == target[j - 2] and text[i - 2] == theirs:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]
