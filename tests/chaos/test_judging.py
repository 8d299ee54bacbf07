"""What feeds the judges of a finished run: shown on small runs' files, without a system."""

import json
from dataclasses import asdict

import pytest
from chaos.judging import judge
from chaos.recorder import Word, line_of
from chaos.run import FAULTS, SUMMARY, TRUTH, WORDS, Done, Outcome

REQUEST = "sluice.request.chaos.r"
DEVICE = {"gpu": "GPU-1", "start": 0, "size": 1, "uuid": "GPU-1"}
LOST = "r lost its slice a while it was wanted"

SAID = [
    (1.0, REQUEST, {"type": "AllocationRequested", "name": "pod-1"}),
    (2.0, "sluice.slice.n.a", {"type": "SliceReady", "allocation": "a", "request": "r", "devices": [DEVICE]}),
    (3.0, "sluice.binding.r", {"type": "Bound", "request": "r", "allocation": "a"}),
    (11.0, "sluice.slice.n.a", {"type": "SliceGone", "allocation": "a", "request": "r"}),
    (13.0, REQUEST, {"type": "RequestWithdrawn"}),
]
"""The pod's end is on the stream only after its slice's."""


def verdict(folder, *, kind: str, killed_at: float) -> list[str]:
    """Of a run in which the pod's manifest was taken away at 10, and one fault was done."""
    words = [Word(at, False, number, subject, "", message) for number, (at, subject, message) in enumerate(SAID, 1)]
    (folder / WORDS).write_text("".join(map(line_of, words)))
    done = Done(1, kind, "", killed_at, killed_at + 0.1, killed_at + 1, 0.5, wiped=False)
    (folder / FAULTS).write_text(json.dumps(asdict(done)) + "\n")
    (folder / TRUTH).write_text('{"pod": "pod-1", "since": 1.0}\n{"pod": "pod-1", "until": 10.0}\n')
    (folder / SUMMARY).write_text(json.dumps(asdict(Outcome(ended_at=20.0))))
    return judge(folder)


def test_an_end_that_a_killed_broker_has_forgotten_does_not_fail_a_run(tmp_path):
    """The allocator read it and revoked; the broker was killed before it stored it, and it was published again."""
    assert verdict(tmp_path, kind="broker-kill", killed_at=10.5) == []


@pytest.mark.parametrize(
    ("kind", "killed_at"),
    [("broker-kill", 8.0), ("broker-kill", 13.5), ("broker-restart", 10.5), ("service-kill", 10.5)],
)
def test_only_a_broker_that_was_killed_in_between_excuses_a_slice_lost_before_its_pods_end(tmp_path, kind, killed_at):
    """An allocator that revokes slices of living pods would pass as long as brokers are killed now and then."""
    assert verdict(tmp_path, kind=kind, killed_at=killed_at) == [LOST]
