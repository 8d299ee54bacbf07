"""Evictions for a place: the interleavings that a simpler rule would lose, each played once on purpose."""

import pytest
from simulation.judge import ViolationError
from simulation.planted_preemptions import PREEMPTION_BUGS
from simulation.planting import planted
from simulation.pods import Ask
from simulation.preemptions import PREEMPTIBLE, PRIORITY
from simulation.quotas import QuotaSaid
from simulation.scene import A30_NODE, MIG_NODE, Scene, sliced

from sluice.contracts.exchange import Write
from sluice.contracts.messages import Grant, Pending, Revoke

GUARANTEE_IGNORED = next(bug for bug in PREEMPTION_BUGS if bug.name == "guarantee ignored")


def ranked(profile: str, priority: int, *, preemptible: bool = False) -> Ask:
    """One slice, for a pod of this priority."""
    ask = sliced(profile)
    more = ((PRIORITY, str(priority)), *(((PREEMPTIBLE, "true"),) if preemptible else ()))
    return Ask((*ask.annotations, *more), ask.containers, ask.devices)


def guaranteed_one() -> Scene:
    """A namespace that is guaranteed one device has two: one on each node, of which one may be evicted."""
    quotas = (QuotaSaid(0.0, "den", guaranteed=(1, None, None)),)
    scene = Scene(MIG_NODE, A30_NODE, quotas=quotas, folder_evicts=True)
    scene.pod("goes", ranked("7g.40gb", 0, preemptible=True), namespace="den")
    scene.pod("stays", ranked("1g.6gb", 0), namespace="den")
    scene.until(lambda: scene.runs("goes") and scene.runs("stays"))
    return scene


def is_for_service(_host: str, write: Write) -> bool:
    """Whether a write is the grant for whose place a pod is evicted."""
    return isinstance(write.message, Grant) and write.message.evict


def is_revoked(landed: list[Write]) -> bool:
    """Whether somebody's slice was taken back."""
    return any(isinstance(write.message, Revoke) for write in landed)


def ends_before_it_is_decided(*, lost: int) -> Scene:
    """What covers the guarantee is revoked, and then its last pod is asked to go; that grant is lost so many times."""
    scene = guaranteed_one()
    landed = scene.landed()
    scene.remove("stays")
    scene.until(lambda: is_revoked(landed))
    scene.lose(is_for_service, times=lost)
    scene.pod("service", ranked("7g.40gb", 5))
    scene.wait(8)
    return scene


def test_a_place_is_had_although_a_pod_of_a_guaranteed_namespace_ends_before_its_grant_has_an_answer() -> None:
    """It was decided while the other stood there, and has to be sent again as it is: nobody is to blame for it."""
    scene = guaranteed_one()
    landed = scene.landed()
    lost = scene.lose(lambda host, write: is_for_service(host, write) and not is_revoked(landed))
    scene.pod("service", ranked("7g.40gb", 5))
    scene.until(lambda: bool(lost))
    scene.remove("stays")
    scene.until(lambda: scene.runs("service"))
    words = [write.message for write in landed if isinstance(write.message, (Grant, Revoke))]
    assert [(type(word), word.booking.name) for word in words][:2] == [(Revoke, "stays"), (Grant, "service")]
    (again,) = (write for write in landed if is_for_service("", write))
    assert (again.operation, again.attempt) == (lost[0].operation, len(lost) + 1)
    scene.finish()


def test_the_last_pod_of_a_guaranteed_namespace_stays_when_the_other_has_ended() -> None:
    """Decided after that, its namespace would have lost both."""
    scene = ends_before_it_is_decided(lost=0)
    assert scene.runs("goes")
    assert isinstance(scene.value(f"sluice.waiting.{scene.request('service')}"), Pending)
    scene.finish()


@pytest.mark.parametrize("lost", [0, 1])
def test_the_judge_sees_a_guarantee_that_is_broken(lost: int) -> None:
    """Without chance: with the rule broken the judge speaks up, also when the grant lands late."""
    with planted(GUARANTEE_IGNORED), pytest.raises(ViolationError) as found:
        ends_before_it_is_decided(lost=lost)
    assert found.value.rule == "guaranteed"
