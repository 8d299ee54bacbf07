"""Judges a simulated workload's answers: what is held fits on its GPU at any moment, slice by slice."""

import json
from collections import defaultdict


def read_answers(text):
    """The answers and the summary of an output file."""
    lines = [json.loads(line) for line in text.splitlines()]
    return lines[:-1], lines[-1]["summary"]


def over_commits(answers, *, gpu_memory_mib):
    """What is given twice, as sentences; empty when nothing is. Walks through the answers in their order."""
    held = {}
    wrong = []
    for answer in answers:
        if answer["answer"] == "bound":
            held[answer["id"]] = answer["devices"]
            for gpu in sorted({device["gpu"] for device in answer["devices"]}):
                wrong += [f"at {answer['at']}: {gpu}: {what}" for what in _wrong_on(gpu, held, gpu_memory_mib)]
        elif answer["answer"] == "released" and held.pop(answer["id"], []) != answer["devices"]:
            wrong.append(f"at {answer['at']}: {answer['id']} gave back something else than it was given")
    return wrong


def _wrong_on(gpu, held, gpu_memory_mib):
    """Slices with two owners, homes that overlap, and more memory or SMs than the GPU has."""
    devices = [device for given in held.values() for device in given if device["gpu"] == gpu]
    owners = defaultdict(set)
    for number, device in enumerate(devices):
        is_share = device["mode"] != "exclusive"
        owner = ("home", device["mode"], device["profile"], device["start"], device["size"]) if is_share else number
        for at in range(device["start"], device["start"] + device["size"]):
            owners[at].add(owner)
    wrong = [f"memory slice {at} has {len(owner)} owners" for at, owner in owners.items() if len(owner) > 1]
    used_mib = sum(device["memory_mib"] for device in devices)
    if used_mib > gpu_memory_mib:
        wrong.append(f"{used_mib} MiB of {gpu_memory_mib} are given")
    percent = sum(device["sm_percent"] for device in devices if device["mode"] == "fractional")
    if percent > 100:
        wrong.append(f"{percent} % of the SMs are given to shares")
    return wrong
