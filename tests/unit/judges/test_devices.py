"""The judge of devices must be able to judge: each fault is shown to it once, and a faultless run is not blamed."""

import pytest
from judges.devices import Calm, Limits, Pod, violations

GPU, MIG = "GPU-1", "MIG-1"
END_S = 1000.0


def instance(uuid: str = MIG, *, start: int = 0, size: int = 1, profile: str = "1g.5gb") -> dict:
    return {"gi_id": 7 + start, "profile": profile, "start": start, "size": size, "uuid": uuid}


def machine(*states: tuple[float, list[dict]]) -> list[tuple[float, dict]]:
    """What was on the one GPU of node `n1`, from each of these times on."""
    return [(at, {"node": "n1", "gpus": [{"uuid": GPU, "instances": there}]}) for at, there in states]


def asks(name: str) -> tuple[float, str, dict]:
    return 1.0, f"sluice.request.r-{name}", {"type": "AllocationRequested", "name": name}


def grant(name: str, *, memory_mib: int = 0) -> tuple[float, str, dict]:
    device = {"gpu": GPU, "share": {"memory_mib": memory_mib}} if memory_mib else {"gpu": GPU}
    booking = {"allocation": f"a-{name}", "request": f"r-{name}", "name": name, "devices": [device]}
    return 2.0, f"sluice.ledger.n1.a-{name}", {"type": "Grant", "booking": booking}


def ready(name: str, uuid: str = MIG) -> tuple[float, str, dict]:
    word = {"type": "SliceReady", "allocation": f"a-{name}", "request": f"r-{name}", "devices": [{"uuid": uuid}]}
    return 4.0, f"sluice.slice.n1.a-{name}", word


def bound(name: str) -> tuple[float, str, dict]:
    return 5.0, f"sluice.binding.r-{name}", {"type": "Bound", "request": f"r-{name}", "allocation": f"a-{name}"}


def life(name: str, uuid: str = MIG) -> list[tuple[float, str, dict]]:
    """Everything that is said of a pod until it has its slice."""
    return [asks(name), grant(name), ready(name, uuid), bound(name)]


def judged(states, words, *pods: Pod, disturbed=()) -> list[str]:
    return violations([states], words, pods, Calm(disturbed), ended_at=END_S, limits=Limits(30, 30, 180))


A_WHILE = machine((3, [instance()]), (110, []))
P, Q = Pod("p", 0, 100), Pod("q", 0, 100)
TWO_IN_ONE_PLACE = machine((3, [instance(start=0, size=4), instance("MIG-2", start=3)]), (9, []))


@pytest.mark.parametrize(
    ("states", "words", "pods", "blamed"),
    [
        # made before it was ordered, there while it was wanted, gone soon after
        (A_WHILE, life("p"), [P], []),
        (TWO_IN_ONE_PLACE, [], [], [f"{GPU} of n1 has instances at (0, 4) and (3, 4) at once (at 3.000)"]),
        (A_WHILE, [*life("p"), *life("q")], [P, Q], [f"{MIG} was given to a-p, a-q"]),
        (machine((6, [instance()]), (110, [])), life("p"), [P], [f"p was bound to {MIG} before it was there"]),
        # a slice that no pod asked for is paid for and unused
        (machine(), [bound("p")], [], ["r-p was bound and no pod asked"]),
        (machine(), [], [Pod("p", 0, 31)], ["p waited 31.000 s for a slice"]),
        (machine(), [], [Pod("p", 0, 29)], []),
    ],
    ids=["no fault", "two in one place", "given to two", "not there", "for no request", "waits too long", "waits"],
)
def test_each_fault_is_seen_and_no_other_is_blamed(states, words, pods, blamed):
    """A pod whose device is another's, or not there, would count as served."""
    assert judged(states, words, *pods) == blamed


def test_shares_that_are_more_than_their_instance_are_seen():
    """Each pod would find less memory than it was promised."""

    def both(memory_mib: int) -> list[str]:
        shared = [[asks(n), grant(n, memory_mib=memory_mib), ready(n), bound(n)] for n in ("p", "q")]
        return judged(A_WHILE, [word for words in shared for word in words], P, Q)

    assert both(2560) == []
    assert both(2561) == [f"{MIG} has 5120 MiB, and 5122 MiB of ['a-p', 'a-q']"] * 2


def test_a_slice_that_goes_under_a_living_pod_is_seen():
    (blamed,) = judged(machine((3, [instance()]), (60, [])), life("p"), P)
    assert blamed.startswith("p lost Instance(node='n1'")
    assert blamed.endswith("55.000 s after it was bound, and still wanted it")


def test_what_is_left_is_seen():
    """A slice that outlives its pod, and one that was never published."""
    states = machine((3, [instance()]), (131, [instance("MIG-2")]), (170, []))
    blamed = judged(states, life("p"), P)
    assert [line.split(" of ")[1] for line in blamed] == ["a-p was left for 31.000 s", "no pod was left for 39.000 s"]


def test_what_is_never_taken_away_is_seen():
    """The end of the last pod is the last chance; while another lives, so is the end of the run."""
    states = machine((3, [instance()]))
    (blamed,) = judged(states, life("p"), P)
    assert blamed.endswith("was never unmade")
    blamed, waits = judged(states, life("p"), P, Pod("q", 900))
    assert blamed.endswith("of a-p was left for 900.000 s")
    assert waits == "q waited 100.000 s for a slice"


def test_time_in_which_something_was_broken_does_not_count_but_has_an_end():
    """A pod that ends while its agent is frozen is cleaned up after the thaw; and not ten freezes later."""
    assert judged(machine(), [], Pod("p", 0, 60), disturbed=[(10, 50)]) == []
    states = machine((3, [instance()]), (150, []))
    assert judged(states, life("p"), P, disturbed=[(105, 130)]) == []
    assert len(judged(states, life("p"), P, disturbed=[(105, 110)])) == 1
    states = machine((3, [instance()]), (290, []))
    assert len(judged(states, life("p"), P, disturbed=[(0, 500)])) == 1


def test_calm_time_is_what_is_left_between_disturbances():
    """They may overlap, touch, and begin before or end after what is asked for."""
    calm = Calm([(10, 20), (15, 30), (50, 60)])
    assert calm.between(0, 100) == 70
    assert calm.between(12, 25) == 0
    assert calm.between(25, 55) == 20
    assert Calm([]).between(3, 4) == 1
