"""Judges a finished run by its files with `judges.history` and `judges.devices`; again: `--judge FOLDER`."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from chaos import deaths
from chaos.recorder import Word, read_words
from chaos.run import FAULTS, SUMMARY, TRUTH, WORDS
from judges import devices
from judges.history import History

STATE = b' {"node":'
TIME_DIGITS = 19
"""Of unix nanoseconds, from 2001 to 2286."""
FORGETFUL = ("broker-kill", "leader-kill", "all-brokers-kill", "broker-wipe", "all-brokers-wipe")
"""Kinds of faults after which a message that was read may be on no stream: STATE is not synced to disk."""


def judge(folder: Path) -> list[str]:
    """Everything that must never happen, and did."""
    words = read_words(folder / WORDS)
    faults = [json.loads(line) for line in (folder / FAULTS).read_text().splitlines()]
    summary = json.loads((folder / SUMMARY).read_text())
    wiped = [fault["ended_at"] for fault in faults if fault["wiped"]]
    pods = _pods(folder / TRUTH)
    forgotten = _ends_forgotten(words, pods, [fault for fault in faults if fault["kind"] in FORGETFUL])
    return [
        *(wrong for life in _lives(words, wiped) for wrong in _history(life, forgotten)),
        *devices.violations(
            [list(_states(log)) for log in sorted(folder.glob("data/hardware/*.json.log"))],
            [(word.at, word.subject, word.message) for word in words],
            pods,
            devices.Calm([(0.0, summary["ready_at"]), *((fault["begun_at"], fault["over_at"]) for fault in faults)]),
            ended_at=summary["ended_at"],
        ),
        *deaths.violations(summary.get("deaths", ())),  # an older run's files have none
    ]


def _lives(words: Iterable[Word], wiped: Iterable[float]) -> list[list[Word]]:
    """The messages between two losses of everything: each part is judged by what its broker could know."""
    lives: list[list[Word]] = [[]]
    ends = list(wiped)
    for word in words:
        while ends and word.at >= ends[0]:
            ends.pop(0)
            lives.append([])
        lives[-1].append(word)
    return lives


def _ends_forgotten(words: Iterable[Word], pods: Iterable[devices.Pod], kills: Sequence[dict]) -> frozenset[str]:
    """Requests whose end is first recorded after a broker was killed, and whose manifest was gone before that."""
    unwanted = {pod.name: pod.until for pod in pods}
    names: dict[str, str] = {}
    told: dict[str, float] = {}
    for word in words:
        request = word.subject.rsplit(".", 1)[1]
        match word.message["type"]:
            case "AllocationRequested":
                names[request] = word.message["name"]
            case "RequestWithdrawn":
                told.setdefault(request, word.at)
    return frozenset(
        request
        for request, told_at in told.items()
        for since in [unwanted.get(names.get(request, ""), devices.END)]
        if any(since < kill["ended_at"] and kill["begun_at"] < told_at for kill in kills)
    )


def _history(words: Iterable[Word], ends_forgotten: frozenset[str]) -> list[str]:
    history = History(sources_killed=True, ends_forgotten=ends_forgotten)
    for word in words:
        history.put(word.subject, word.sequence, word.message)
    return history.violations()


def _states(log: Path) -> Iterator[tuple[float, dict]]:
    """Each state of a machine. In a line that its writer was killed in, the next writer's whole one follows."""
    with log.open("rb") as lines:
        for line in lines:
            begin = line.rfind(STATE)
            yield int(line[begin - TIME_DIGITS : begin]) / 1e9, json.loads(line[begin:])


def _pods(truth: Path) -> list[devices.Pod]:
    pods: dict[str, devices.Pod] = {}
    for line in truth.read_text().splitlines():
        said = json.loads(line)
        if "since" in said:
            pods[said["pod"]] = devices.Pod(said["pod"], said["since"])
        else:
            pods[said["pod"]].until = said["until"]
    return list(pods.values())
