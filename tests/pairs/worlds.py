"""Worlds by seed: small and full, most with pods that want several whole GPUs beside tenants of one (ADR 0021, 9)."""

from dataclasses import replace
from random import Random

from pairs.plan import (
    CALM_FROM_S,
    Comes,
    CordonSaid,
    Edited,
    Goes,
    Health,
    Limited,
    Plan,
    PodSpec,
    Resized,
    Step,
    Trouble,
)

from sluice.contracts.bus.events import Stream
from sluice.contracts.messages import Amounts, Claim

PROFILES = {
    "a30-24gb": ("1g.6gb", "1g.6gb", "2g.12gb", "2g.12gb", "4g.24gb"),
    "a100-40gb": ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "3g.20gb", "4g.20gb", "7g.40gb"),
}
NAMESPACES = ("lab", "den")
PATIENT = 0.15
"""So many pods never have another evicted for them."""
TOPICS = ("several", "movable", "larger", "preemption", "groups", "quotas", "shares", "containers")
FAULTS = ("cordons", "edits", "health", "restarts", "leases", "stalls", "readings")


def draw_plan(seed: int) -> Plan:
    return _Drawing(Random(seed), Random(f"patience {seed}")).plan(seed)


class _Drawing:
    """Draws one world."""

    def __init__(self, dice: Random, patience: Random) -> None:
        self.dice = dice
        self.patience = patience
        """Drawn apart: all else of a seed stays what it was."""
        self.steps: list[tuple[float, Step]] = []
        self.names: list[str] = []
        self.singles: list[str] = []
        """Those who are of no job: of who is edited, allocators that began later know another turn."""
        topics = dice.sample(TOPICS, dice.choice((1, 2, 2, 3)))
        self.topics = dict.fromkeys(topics + dice.sample(FAULTS, dice.choice((0, 1, 2, 3, 4))))
        self.exchanges = dice.random() < 0.6
        """Whether this is a world of pods that want several whole GPUs, and of tenants of one."""
        self.is_hot = self.exchanges or dice.random() < 0.5
        """Whether it is small, and most pods end by themselves."""
        if self.is_hot and dice.random() < 0.5:
            self.topics |= {"movable": None, "larger": None}
        self.nodes = self._draw_nodes()
        self.models = [model for gpus in self.nodes for model in gpus]

    def plan(self, seed: int) -> Plan:
        dice = self.dice
        self._draw_pods()
        self._draw_operators()
        self._draw_troubles()
        moves = "movable" in self.topics or "larger" in self.topics
        queues = (200_000,) if "groups" in self.topics else (200_000, 200_000, 200_000, 2, 4)
        return Plan(
            seed=seed,
            nodes=self.nodes,
            steps=tuple(sorted(self.steps, key=lambda step: step[0])),
            allocators=dice.choice((1, 2, 2, 2)),
            defragment=dice.random() < (0.8 if moves else 0.5),
            promise_after_s=dice.choice((1.0, 2.0) if self.exchanges else (2.0, 3.0, 5.0)),
            promises_percent=dice.choice((30, 30, 100, 100) if self.exchanges else (30, 30, 100, 0)),
            waiting_max=dice.choice(queues),
            settle_batch=dice.choice((3, 200)),
            tries=dice.choice((4, 48)),
            group_steps=dice.choice((48, 48, 48, 2)),
            lost=dice.choice((0.0, 0.0, 0.05)),
            failing=dice.choice((0.0, 0.05, 0.2)),
        )

    def _draw_nodes(self) -> tuple[tuple[str, ...], ...]:
        dice, is_mixed = self.dice, self.dice.random() < (0.1 if self.exchanges else 0.4)
        model = dice.choice(list(PROFILES))
        sizes = [dice.choice((1, 1, 2, 2)) for _ in range(dice.choice((1, 1, 2, 2, 3)))]
        if self.exchanges:  # on one node there is more than what is wanted at once
            sizes = [dice.choice((3, 3, 4)), *sizes[: dice.choice((0, 0, 1))]]
        return tuple(tuple(dice.choice(list(PROFILES)) if is_mixed else model for _ in range(size)) for size in sizes)

    # -- pods ------------------------------------------------------------------------------------------------------

    def _draw_pods(self) -> None:
        dice, count = self.dice, len(self.models)
        if self.exchanges:
            self._draw_tenants_and_those_who_want_several()
        most = dice.choice((0, 2, 2 * count))  # others take what is freed before it can be exchanged
        is_quiet = self.exchanges and "groups" not in self.topics
        number = dice.randint(0, most) if is_quiet else dice.randint(3 + count, 4 + 5 * count)
        for at in range(number):
            pod = self._draw_pod(f"p{at}")
            when = dice.choice((dice.uniform(0, 3), dice.uniform(0, 15), dice.uniform(0, CALM_FROM_S - 3)))
            if "groups" in self.topics and dice.random() < 0.25:
                size = dice.choice((2, 2, 3))
                for member in range(size):
                    name = f"g{at}x{member}"
                    self._comes(when + dice.uniform(0, 1), replace(pod, name=name, group=f"g{at}", group_size=size))
            else:
                self._comes(when, pod)
        for _ in range(dice.randint(0, max(1, len(self.names) // 4))):
            self._at(dice.uniform(2, CALM_FROM_S - 1), Goes(dice.choice(self.names), again=dice.random() < 0.4))

    def _draw_tenants_and_those_who_want_several(self) -> None:
        dice = self.dice
        for at, model in enumerate(self.models):
            tenant = self._with_leeway(PodSpec(f"t{at}", (Claim(container="main", profile=self._most_of(model)),)))
            life_s = dice.choice((None, *(dice.uniform(4, 20) for _ in range(6))))
            self._comes(dice.uniform(0, 1), replace(tenant, life_s=life_s))
        for at in range(dice.choice((1, 1, 2))):
            claim = Claim(
                container="main", profile=self._most_of(dice.choice(self.models)), gpus=dice.choice((2, 2, 3))
            )
            pod = self._with_leeway(PodSpec(f"b{at}", (claim,)))
            self._comes(dice.uniform(1, 3), replace(pod, life_s=dice.choice((None, dice.uniform(3, 10)))))

    def _most_of(self, model: str) -> str:
        return self.dice.choice(PROFILES[model][-2:]) if self.dice.random() < 0.4 else PROFILES[model][-1]

    def _draw_pod(self, name: str) -> PodSpec:
        dice, model = self.dice, self.dice.choice(self.models)
        if "shares" in self.topics and dice.random() < 0.4:
            memory_mib, uid = dice.choice((2000, 4000, 8000)), dice.choice((1000, 1000, 1001))
            claim = Claim(container="main", modes=("mps",), memory_mib=memory_mib, uid=uid)
            if dice.random() < 0.15:
                claim = Claim(container="main", modes=("exclusive", "mps"), memory_mib=memory_mib, uid=uid)
        else:
            among = PROFILES[model][:-1] if self.is_hot and dice.random() < 0.6 else PROFILES[model]
            several = "several" in self.topics and dice.random() < 0.3
            claim = Claim(container="main", profile=dice.choice(among), gpus=2 if several else 1)
        claims = (claim,)
        if "containers" in self.topics and dice.random() < 0.15:
            claims += (Claim(container="side", profile=dice.choice(PROFILES[model])),)
        lives = (None, None, None, dice.uniform(1, 8), dice.uniform(2, 20))
        lives += (dice.uniform(3, 20),) * 4 if self.is_hot else ()
        return self._with_leeway(PodSpec(name, claims, life_s=dice.choice(lives)))

    def _with_leeway(self, pod: PodSpec) -> PodSpec:
        dice = self.dice
        pod = replace(pod, namespace=dice.choice(NAMESPACES))
        if "preemption" in self.topics:
            pod = replace(pod, priority=dice.choice((0, 0, 1, 2)), preemptible=dice.random() < 0.5)
            pod = replace(pod, preempts=self.patience.random() >= PATIENT)
        if "movable" in self.topics:
            pod = replace(pod, movable=dice.random() < 0.7)
        if "larger" in self.topics and pod.claims[0].profile is not None:
            pod = replace(pod, substitute=dice.choice(("no", "return", "return", "return", "stay")))
        return pod

    def _comes(self, when: float, pod: PodSpec) -> None:
        self.names.append(pod.name)
        self.singles += [] if pod.group else [pod.name]
        self._at(when, Comes(pod))

    # -- what happens to them --------------------------------------------------------------------------------------

    def _at(self, when: float, step: Step) -> None:
        self.steps.append((when, step))

    def _times(self, topic: str, most: int) -> list[float]:
        if topic not in self.topics:
            return []
        return [self.dice.uniform(0.5, CALM_FROM_S - 2) for _ in range(self.dice.randint(1, most))]

    def _draw_operators(self) -> None:
        dice = self.dice
        for when in self._times("quotas", 4):
            self._at(dice.choice((0.0, when)), self._draw_limits())
        for when in self._times("cordons", 2):
            node = dice.randrange(len(self.nodes))
            gpus = (dice.randrange(len(self.nodes[node])),) if dice.random() < 0.5 else ()
            self._at(when, CordonSaid(node, gpus, drain=dice.random() < 0.3))
            if dice.random() < 0.85:
                self._at(min(CALM_FROM_S - 1, when + dice.uniform(1, 12)), CordonSaid(node, None))
        for when in self._times("health", 1):
            node = dice.randrange(len(self.nodes))
            gpu = dice.randrange(len(self.nodes[node]))
            self._at(when, Health(node, gpu, is_healthy=False))
            if dice.random() < 0.7:
                self._at(min(CALM_FROM_S - 1, when + dice.uniform(1, 12)), Health(node, gpu, is_healthy=True))
        for when in self._times("edits", 5) if self.singles else ():
            claim = Claim(container="main", profile=dice.choice(PROFILES[dice.choice(self.models)]))
            wants_other = dice.random() < 0.7
            other = {"claims": (claim,)} if wants_other else {"priority": dice.choice((0, 1, 3))}
            self._at(when, Edited(dice.choice(self.singles), **other))
        for when in self._times("shares", 8):
            memory_mib = dice.choice((1000, 3000, 6000, 12000))
            self._at(when, Resized(dice.choice(self.names), memory_mib, dice.randrange(2)))

    def _draw_limits(self) -> Limited:
        dice = self.dice
        namespace = dice.choice(NAMESPACES)
        if dice.random() < 0.15:
            return Limited(namespace)
        amounts = dice.choice(
            (
                Amounts(gpus=dice.choice((1, 2, 3, 4))),
                Amounts(gpus=dice.choice((1, 2, 3, 4))),
                Amounts(memory_mib=dice.choice((12000, 20096, 40000))),
                Amounts(compute_slices=dice.choice((2, 4, 7, 10))),
            )
        )
        if dice.random() < 0.3:
            return Limited(namespace, guaranteed=amounts)
        return Limited(namespace, total=amounts, guaranteed=Amounts(gpus=1) if dice.random() < 0.2 else None)

    def _draw_troubles(self) -> None:
        dice = self.dice
        both = (Stream.BOOK, Stream.STATE)
        for when in self._times("restarts", 2):
            self._at(when, Trouble("dies", dice.randrange(2), dice.uniform(0.1, 4)))
        for when in self._times("leases", 3):
            self._at(when, Trouble("rests", dice.randrange(2), dice.uniform(0.2, 6)))
        for when in self._times("stalls", 6):
            streams = dice.choice((both[:1], both[1:], both))
            self._at(when, Trouble("stalls", dice.randrange(2), dice.uniform(0.3, 5), streams))
        for when in self._times("readings", 3):
            self._at(when, Trouble("rereads", dice.randrange(2), streams=(dice.choice(both),)))
