"""Areas in proportion to sizes, each as square as possible.

Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000): boxes are laid out in rows along the
shorter side of the remaining space, and a box is added to a row while that makes the row's boxes
squarer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A box in pixels, from the left and from the top."""

    left: float
    top: float
    width: float
    height: float


def split_box(sizes: Sequence[float], box: Box) -> list[Box]:
    """Split a box into one box per size, in the order of the sizes, which should be descending."""
    boxes: list[Box] = []
    rest = box
    start = 0
    total = sum(sizes)
    while start < len(sizes):
        scale = 0.0
        if total:
            scale = rest.width * rest.height / total
        end = start + _count_row([size * scale for size in sizes[start:]], rest)
        row = sizes[start:end]
        share = 0.0
        if total:
            share = sum(row) / total
        placed, rest = _place_row(row, share, rest)
        boxes += placed
        total -= sum(row)
        start = end
    return boxes


def _count_row(areas: Sequence[float], box: Box) -> int:
    """Return the number of areas in the next row."""
    side = min(box.width, box.height)
    count = 1
    worst = _worst_ratio(areas[:1], side)
    while count < len(areas):
        ratio = _worst_ratio(areas[: count + 1], side)
        if ratio > worst:
            break
        count += 1
        worst = ratio
    return count


def _worst_ratio(areas: Sequence[float], side: float) -> float:
    """Return the worst aspect ratio of a row's boxes."""
    total = sum(areas)
    if not total or not side or not areas[-1]:
        return float("inf")
    depth = total / side
    worst = 0.0
    for area in (areas[0], areas[-1]):
        length = area / depth
        worst = max(worst, depth / length, length / depth)
    return worst


def _place_row(sizes: Sequence[float], share: float, box: Box) -> tuple[list[Box], Box]:
    """Return the boxes of a row along the shorter side of a box, and the remaining box.

    Args:
        share: the share of the box that the row takes.
    """
    total = sum(sizes) or 1
    boxes = []
    if box.width >= box.height:
        depth = box.width * share
        place = box.top
        for size in sizes:
            length = box.height * size / total
            boxes.append(Box(box.left, place, depth, length))
            place += length
        return boxes, Box(box.left + depth, box.top, box.width - depth, box.height)
    depth = box.height * share
    place = box.left
    for size in sizes:
        length = box.width * size / total
        boxes.append(Box(place, box.top, length, depth))
        place += length
    return boxes, Box(box.left, box.top + depth, box.width, box.height - depth)
