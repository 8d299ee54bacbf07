"""
Splits an amount of GPU over several GPUs: as evenly as whole quanta allow, on as few GPUs as that takes.

Works on numbers only: the free amount on each device of one node, and the requested amount. The caller has filtered
the devices.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


def split(free_percent: Sequence[int], want_percent: int, quantum: int = 1) -> tuple[int, ...] | None:
    """
    What each device gives of `want_percent` hundredths of a GPU: one number per device, 0 for none; exact in sum.

    An even split is one whose parts differ by at most one quantum. The fewest devices that allow one are taken, of
    those the least free that suffice (so what fits one device goes to the fullest device that holds it). Where the
    free amounts allow no even split, the one with the least difference between its parts, then with the fewest
    devices. Equal devices are taken in order.

    None when the devices have less free than is wanted, counted in whole quanta of each, or when the amount is not
    a positive multiple of the quantum. A device with less than nothing free counts as one with nothing.
    The even step is the aim of lablup/backend.ai's fractional allocation map (src/ai/backend/agent/alloc_map.py);
    docs/sharing.md says where the answers differ.
    """
    if want_percent < 1 or quantum < 1 or want_percent % quantum:
        return None
    quanta = want_percent // quantum
    devices = sorted((free // quantum, index) for index, free in enumerate(free_percent) if free >= quantum)
    caps = [cap for cap, _ in devices]  # rising
    sums = list(accumulate(reversed(caps), initial=0))  # of the n devices that have most free
    if sums[-1] < quanta:
        return None
    fewest = bisect_left(sums, quanta)
    parts = _even(caps, quanta, fewest) or _least_uneven(caps, sums, quanta, fewest)
    given = [0] * len(free_percent)
    for at, part in parts:
        given[devices[at][1]] = part * quantum
    return tuple(given)


def _even(caps: list[int], quanta: int, fewest: int) -> list[tuple[int, int]] | None:
    """Which devices (by position) give how many quanta, where parts of `low` and `low` + 1 are possible."""
    count = len(caps)
    for n in range(fewest, min(count, quanta) + 1):
        low, more = divmod(quanta, n)
        if caps[count - n] < low or (more and caps[count - more] <= low):
            continue
        first = bisect_left(caps, low)
        larger = bisect_left(caps, low + 1, first)
        only_low = min(n - more, larger - first)
        chosen = [*range(first, first + only_low), *range(larger, larger + n - only_low)]
        # the larger parts come from the devices with most free, which leaves the chosen ones most alike
        chosen.sort(key=lambda at: -caps[at])
        return [(at, low + (place < more)) for place, at in enumerate(chosen)]
    return None


def _least_uneven(caps: list[int], sums: list[int], quanta: int, fewest: int) -> list[tuple[int, int]]:
    """
    Give alike up to what each device has, over the n devices with most free, for the n where the parts differ least.

    `filled` is what every device gives that has as much; `above` devices have more than that.
    """
    count = len(caps)
    choices: list[tuple[int, int, int]] = []
    above = 1
    for n in range(fewest, count + 1):
        filled = (quanta - (sums[n] - sums[above])) // above
        while above < n and caps[count - 1 - above] > filled:
            above += 1
            filled = (quanta - (sums[n] - sums[above])) // above
        more = quanta - (sums[n] - sums[above]) - filled * above
        difference = filled + (more > 0) - min(filled, caps[count - n])
        choices.append((difference, n, filled))
    _, n, filled = min(choices)
    most_free_first = sorted(range(count), key=lambda at: -caps[at])
    parts = [(at, min(caps[at], filled)) for at in most_free_first[:n]]
    more = quanta - sum(part for _, part in parts)
    return [(at, part + (place < more)) for place, (at, part) in enumerate(parts)]
