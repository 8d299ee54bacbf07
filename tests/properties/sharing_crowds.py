"""Rare things begun on purpose: full fleets, torn ones, those without what is asked; the rest is drawn and judged."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from properties.sharing_asks import GUARANTEES, NAMESPACES, PodAsk

from sluice.contracts.messages import Amounts, Claim, Leeway, QuotaSet

CROWD_MAX = 29
"""One more than the smallest slices of four GPUs: the last one finds no place."""
LARGE = ("7g.40gb", "4g.24gb")
SMALL = ("1g.5gb", "2g.10gb", "3g.20gb", "2g.12gb")
SETTLES_S = 70.0
"""Longer than a pod is left alone after it was moved, and than any wait for a successor."""


def one(profile: str) -> tuple[Claim, ...]:
    return (Claim(container="main", profile=profile),)


class Crowds:
    """Rules of a `SharingMachine`."""

    def _fill(self, pod: PodAsk) -> list[str]:
        """Such pods come until one finds no place, which goes again; the others run."""
        self.goes_on = False  # until all of it is done: what is found on the way is not looked at a second time
        came: list[str] = []
        for _ in range(CROWD_MAX):
            request = self.world.ask(pod)
            self._calm()
            if not self.world.facts.granted(request):
                self.world.withdraw(request)
                break
            came.append(request)
        self._agents_obey()
        return came

    def _agents_obey(self) -> None:
        for allocation in self.world.facts.orders():
            self.world.obey(allocation)
            self._calm()

    def _goes_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self._calm()
            for request in self.world.facts.to_evict():
                self.world.evict(request, comes_back=True)
                self._calm()
            self._agents_obey()
            self.world.tick(SETTLES_S)

    @rule(
        profile=st.sampled_from(SMALL),
        whose=st.sampled_from(NAMESPACES),
        asks=st.sampled_from(NAMESPACES),
        large=st.sampled_from((*LARGE, *SMALL)),
        sure=GUARANTEES,
        rounds=st.integers(0, 2),
    )
    def an_important_pod_comes_to_a_full_fleet(self, profile, whose, asks, large, sure, rounds) -> None:
        """All pods there may be evicted, but for what their namespace is guaranteed."""
        self._fill(PodAsk(one(profile), whose, 0, Leeway(preemptible=True)))
        if sure != Amounts():
            self.world.say(QuotaSet(namespace=whose, guaranteed=sure))
        self.world.ask(PodAsk(one(large), asks, 3))
        self._goes_on(rounds)
        self._done()

    @rule(data=st.data(), profile=st.sampled_from(SMALL), rounds=st.integers(0, 5))
    def a_large_pod_comes_to_a_torn_fleet(self, data, profile, rounds) -> None:
        """There is room enough, in pieces; and every pod on it may be moved."""
        came = self._fill(PodAsk(one(profile), "lab", 0, Leeway(movable=True)))
        for request in came:
            if data.draw(st.booleans()):
                self.world.withdraw(request)
                self._calm()
        self._agents_obey()
        self.world.tick(SETTLES_S)
        self.world.ask(PodAsk(one(LARGE[0])))
        self._goes_on(rounds)
        self._done()

    @precondition(lambda self: {"a100-40gb", "a30-24gb"} <= self.kinds)
    @rule(data=st.data(), substitute=st.sampled_from(["return", "return", "stay"]), rounds=st.integers(0, 4))
    def what_was_asked_for_is_to_be_had_again(self, data, substitute, rounds) -> None:
        """A pod has a larger instance on a GPU of another model; then one of those ends who had its own taken."""
        came = self._fill(PodAsk(one(LARGE[0]), "lab", 1))
        self.world.ask(PodAsk(one("1g.5gb"), "lab", 0, Leeway(substitute=substitute)))
        self._calm()
        self._agents_obey()
        if came:
            self.world.withdraw(data.draw(st.sampled_from(came)))
        self._goes_on(rounds)
        self._done()
