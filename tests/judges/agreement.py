"""
Judges whether ledger, hardware and pods say the same: each booked place is one instance, and one running pod sees it.

It reads plain JSON (ledger entries as they are on the bus, a simulated machine's file, the environment of containers)
and shares no code with what it judges. For MIG instances of one owner; a share or a whole GPU is none of its business.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

Place = tuple[str, str, int, int]
"""Node, GPU, first memory slice, how many."""


@dataclass(frozen=True)
class Runs:
    """A pod that runs: its node, and the devices that its containers were started with."""

    node: str
    devices: frozenset[str]


def disagreements(ledger: Iterable[dict], machines: Iterable[dict], pods: Mapping[str, Runs]) -> list[str]:
    """What is in one of the three and not in the others, as sentences; empty when all agree. `pods` are by UID."""
    wrong: list[str] = []
    booked: dict[Place, str] = {}
    for entry in ledger:
        wrong += _book(entry, booked)
    there = dict(_instances(machines))
    for place in sorted(booked.keys() | there.keys()):
        if place not in there:
            wrong.append(f"{place} is booked for {booked[place]} and no instance is there")
        elif place not in booked:
            wrong.append(f"{place} holds {there[place]} and is not booked")
    for pod in sorted({*booked.values(), *pods}):
        wrong += _held_against(pod, {place: there.get(place, "") for place, of in booked.items() if of == pod}, pods)
    return wrong


def _book(entry: dict, booked: dict[Place, str]) -> Iterator[str]:
    if entry["type"] not in {"Grant", "Revoke"}:
        return
    booking = entry["booking"]
    if entry["type"] == "Revoke":
        yield f"{booking['allocation']} is being taken back"
    for device in booking["devices"]:
        place = (booking["node"], device["gpu"], device["start"], device["size"])
        if place in booked:
            yield f"{place} is booked twice: for {booked[place]} and {booking['request']}"
        booked[place] = booking["request"]


def _instances(machines: Iterable[dict]) -> Iterator[tuple[Place, str]]:
    for machine in machines:
        for gpu in machine["gpus"]:
            for instance in gpu["instances"]:
                yield (machine["node"], gpu["uuid"], instance["start"], instance["size"]), instance["uuid"]


def _held_against(pod: str, own: Mapping[Place, str], pods: Mapping[str, Runs]) -> Iterator[str]:
    runs = pods.get(pod)
    if runs is None:
        yield f"{sorted(own)} is booked for {pod}, which does not run"
    elif runs.devices != set(own.values()):
        yield f"{pod} runs on {sorted(runs.devices)}, and what is booked for it is {sorted(own.values())}"
    elif any(place[0] != runs.node for place in own):
        yield f"{pod} runs on {runs.node}, and has {sorted(own)}"
