"""Indexes that keep no empty entry: members by key, in the order in which they came, and counts by key. And turns."""

from collections import OrderedDict
from itertools import islice
from typing import TypeVar

K = TypeVar("K")
M = TypeVar("M")
V = TypeVar("V")


def put(index: dict[K, dict[M, None]], key: K, member: M) -> None:
    index.setdefault(key, {})[member] = None


def drop(index: dict[K, dict[M, V]], key: K, member: M) -> None:
    """Remove a member, if present, and its key after the last one."""
    there = index.get(key)
    if there is not None:
        there.pop(member, None)
        if not there:
            del index[key]


def count(counts: dict[K, int], key: K, by: int) -> int:
    """Add to a count, which is removed at zero. Returns the new count."""
    left = counts.get(key, 0) + by
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)
    return left


def in_turn(waiting: OrderedDict[K, V], most: int) -> list[K]:
    """The first ones, at most so many; they come last the next time."""
    some = list(islice(waiting, most))
    for each in some if len(some) < len(waiting) else ():
        waiting.move_to_end(each)
    return some
