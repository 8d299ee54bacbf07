"""Pods come and go while everything is killed at random: no device is ever with two pods, and nothing is left."""

import os
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from cluster import breaking, gpu_pods, judging
from cluster.gpu_pods import Json, create, manifest, pods
from cluster.harness.box import BoxError
from cluster.harness.cluster import Cluster
from cluster.waiting import until

CHURN_S = 100.0
PODS = 60
KILLS = 20
PROFILES = ("1g.5gb", "1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
LIVES = ("sleep 2", "sleep 10", gpu_pods.SLEEPS, gpu_pods.SLEEPS, gpu_pods.IGNORES_TERM)
"""Some end by themselves, some when asked, some when killed."""


@pytest.mark.usefixtures("handed_back")
@pytest.mark.parametrize("namespace", ["tickets", "dra"], indirect=True)
def test_no_device_is_with_two_pods_while_everything_is_killed_at_random(installed: Cluster, namespace: str) -> None:
    """SLUICE_CLUSTER_SEED names the seed of a run to see again what was done; times are a machine's own."""
    seed = os.environ.get("SLUICE_CLUSTER_SEED") or secrets.token_hex(4)
    churn = Churn(installed, namespace, random.Random(seed))
    churn.run()
    done = f"seed {seed}: " + "; ".join(churn.done)
    assert not churn.faults, f"{churn.faults}\n{done}"
    assert churn.samples > CHURN_S / 10, done
    try:
        breaking.until_whole(installed)
        churn.until_all_have_run()
        gpu_pods.delete(installed, namespace, pods(installed, namespace))
        gpu_pods.until_gone(installed, namespace)
        gpu_pods.until_returned(installed, namespace)
    except AssertionError as error:
        error.add_note(done)
        raise
    judging.check(installed)


@dataclass(slots=True)
class Churn:
    """What is done, at times that are drawn beforehand, and what was seen meanwhile."""

    cluster: Cluster
    namespace: str
    draw: random.Random
    done: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    samples: int = 0

    def run(self) -> None:
        """For CHURN_S: whatever is due, else a look."""
        due: list[tuple[float, Callable[[], str]]] = [
            *((self.draw.uniform(0, CHURN_S), self._creator(number)) for number in range(PODS)),
            *((self.draw.uniform(0, CHURN_S), self._delete) for _ in range(PODS // 2)),
            *((self.draw.uniform(0, CHURN_S), self._kill) for _ in range(KILLS)),
        ]
        due.sort(key=lambda each: each[0])
        started = time.monotonic()
        while due:
            now = time.monotonic() - started
            while due and due[0][0] <= now:
                at, act = due.pop(0)
                self.done.append(f"{at:.0f} s {act()}")
            self.faults += judging.faults(self.cluster)
            self.samples += 1

    def until_all_have_run(self) -> None:
        """Every pod that was not deleted runs or has ended by itself, as many at once as there is room."""

        def look() -> bool:
            found = pods(self.cluster, self.namespace)
            running = [name for name, pod in found.items() if gpu_pods.is_ready(pod)]
            waiting = [name for name, pod in found.items() if gpu_pods.is_held(pod) and name not in running]
            gpu_pods.delete(self.cluster, self.namespace, running or ["none"])
            self.faults += judging.faults(self.cluster)
            return not waiting

        until("every pod has run", look, within_s=240)
        assert not self.faults, self.faults

    def _creator(self, number: int) -> Callable[[], str]:
        body = manifest(
            f"pod-{number}",
            self.draw.choice(PROFILES),
            command=self.draw.choice(LIVES),
            restart=self.draw.choice(("Never", "OnFailure")),
        )
        body["spec"]["terminationGracePeriodSeconds"] = self.draw.choice((0, 2, 5))
        return lambda: self._create(body)

    def _create(self, body: Json) -> str:
        """As a controller does: a refusal while the webhook is away is tried again."""
        name = body["metadata"]["name"]

        def ask() -> bool:
            try:
                create(self.cluster, self.namespace, [body])
            except BoxError as error:
                if "already exists" not in str(error):
                    raise
            return True

        until(f"{name} is accepted", ask)
        return f"create {name}"

    def _delete(self) -> str:
        names = sorted(pods(self.cluster, self.namespace))
        if not names:
            return "delete nothing"
        name, is_forced = self.draw.choice(names), self.draw.random() < 0.3
        gpu_pods.delete(self.cluster, self.namespace, [name], *(gpu_pods.FORCED if is_forced else ()))
        return f"{'force ' if is_forced else ''}delete {name}"

    def _kill(self) -> str:
        kind = self.draw.choice((*breaking.COMPONENTS, "kubelet", "containerd"))
        if kind == "kubelet":
            worker = self.draw.choice(self.cluster.workers).name
            breaking.kill_kubelet(self.cluster, worker)
            breaking.start_kubelet(self.cluster, worker)
            return f"restart the kubelet of {worker}"
        if kind == "containerd":
            worker = self.draw.choice(self.cluster.workers).name
            breaking.restart_containerd(self.cluster, worker)
            return f"restart containerd of {worker}"
        found = breaking.pods_of(self.cluster, kind)
        if not found:
            return f"no {kind} to kill"
        victim = self.draw.choice(sorted(found, key=lambda each: str(each["metadata"]["name"])))
        if self.draw.random() < 0.5:
            breaking.force_delete(self.cluster, victim)
            return f"force delete {kind}"
        return f"kill {breaking.kill_processes(victim)} processes of {kind}"
