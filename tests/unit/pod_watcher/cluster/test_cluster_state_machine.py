"""In any order each pod is bound at most once and withdrawn exactly when it may be, by the model of the API server."""

import copy

from api_model import GATE, ApiModel, new_pod
from conftest import Bench, bound
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId, RunId
from sluice.contracts.messages import AllocationRequested, RequestWithdrawn
from sluice_pod_watcher.core.cluster import events as e
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.watcher import ClusterWatcher

NAMES = ("a", "b", "c")
QUEUE = "kueue.x-k8s.io/admission"
RULES = ClusterConfig(unscheduled_after_s=0, start_after_s=0)


class ClusterMachine(RuleBasedStateMachine):
    """Pods come and go; the watch shows some of it, late, twice or never; calls fail, land unseen, or succeed."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(ClusterWatcher(RunId("w0"), RULES), ApiModel(), automatic=False)
        self.uids = 0
        self.runs = 0
        self.bound: set[str] = set()
        self.withdrawn_checked = 0
        self.bench.start()

    def pick(self, data, condition=lambda _: True):
        found = [pod for pod in self.bench.api.pods.values() if condition(pod)]
        return copy.deepcopy(data.draw(st.sampled_from(found))) if found else None

    def put(self, pod, seen, kind=""):
        """A new version of a pod, which the watch shows or not."""
        stored = copy.deepcopy(self.bench.api.store(pod, kind))
        if seen:
            self.bench.handle(e.Gone("pods", stored) if kind else e.Seen("pods", stored))

    @rule(name=st.sampled_from(NAMES), queued=st.booleans(), seen=st.booleans())
    def create(self, name, queued, seen):
        if name not in self.bench.api.pods:
            self.uids += 1
            self.put(new_pod(name, f"u{self.uids}", gates=(GATE, QUEUE) if queued else (GATE,)), seen)

    @rule(data=st.data(), seen=st.booleans())
    def admit(self, data, seen):
        pod = self.pick(data, lambda each: {"name": QUEUE} in each["spec"].get("schedulingGates", []))
        if pod:
            pod["spec"]["schedulingGates"].remove({"name": QUEUE})
            self.put(pod, seen)

    @rule(data=st.data(), seen=st.booleans(), phase=st.sampled_from(["Running", "Succeeded", "restarting"]))
    def live(self, data, seen, phase):
        pod = self.pick(data, lambda each: not each["spec"].get("schedulingGates") and not over(each))
        if pod:
            state = {"running": {}} if phase == "Running" else {"terminated": {}}
            pod["spec"]["nodeName"] = "node-a"
            pod["status"] |= {
                "phase": "Succeeded" if phase == "Succeeded" else "Running",
                "containerStatuses": [{"name": "main", "state": state}],
            }
            self.put(pod, seen)

    @rule(data=st.data(), seen=st.booleans(), grace=st.sampled_from([0, 30]))
    def begin_to_die(self, data, seen, grace):
        """A user deletes a pod; it has a grace period or a finalizer."""
        pod = self.pick(data)
        if pod:
            pod["metadata"] |= {"deletionTimestamp": "now", "deletionGracePeriodSeconds": grace}
            pod["metadata"] |= {"finalizers": ["a/b"]} if grace == 0 else {}
            self.put(pod, seen)

    @rule(data=st.data(), seen=st.booleans())
    def vanish(self, data, seen):
        pod = self.pick(data)
        if pod:
            pod["metadata"] |= {"deletionTimestamp": "now", "deletionGracePeriodSeconds": 0, "finalizers": []}
            self.put(pod, seen, "DELETED")

    @rule(data=st.data())
    def lose_the_label(self, data):
        pod = self.pick(data, lambda each: each["metadata"]["labels"])
        if pod:
            pod["metadata"]["labels"] = {}
            stored = self.bench.api.store(pod)
            self.bench.handle(e.Gone("pods", copy.deepcopy(stored)))

    @precondition(lambda self: self.bench.api.history)
    @rule(data=st.data())
    def replay(self, data):
        kind, pod = data.draw(st.sampled_from(self.bench.api.history))
        if kind != "DELETED":
            self.bench.show(pod)

    @rule()
    def relist(self):
        self.bench.list()

    @rule(seconds=st.sampled_from([0.5, 3.0, 70.0]))
    def wait(self, seconds):
        self.bench.pass_time(seconds)

    @precondition(lambda self: self.bench.calls)
    @rule(how=st.sampled_from(["done", "unanswered", "lost", "away"]))
    def answer(self, how):
        """A call is answered: done, done without an answer, not done, or refused."""
        call = self.bench.calls.pop(0)
        if isinstance(call, e.BindPod) and how != "lost":
            pod = self.bench.api.pods.get(call.name)
            gates = [] if pod is None else [each["name"] for each in pod["spec"].get("schedulingGates", [])]
            landed = self.bench.carry_out(call)
            assert not isinstance(landed[0], e.Done) or gates == [GATE], "opened with another's gate there"
            self.bench.handle(*(landed if how == "done" else [e.Failed(call, 0, "timeout")]))
        elif how in {"done", "unanswered"}:
            self.bench.handle(*self.bench.carry_out(call))
        else:
            self.bench.handle(e.Failed(call, 503, "away"))

    @rule(data=st.data())
    def give(self, data):
        asked = [
            subject.rpartition(".")[2]
            for subject, word in self.bench.bus.items()
            if isinstance(word, AllocationRequested) and subject.replace("request", "binding") not in self.bench.bus
        ]
        if asked:
            uid = data.draw(st.sampled_from(sorted(asked)))
            self.bound.add(uid)
            self.bench.observe(subjects.binding(RequestId(uid)), bound(uid))

    @rule()
    def release(self):
        for subject, word in list(self.bench.bus.items()):
            if isinstance(word, RequestWithdrawn) and not word.closing:
                self.bench.release(subject.rpartition(".")[2])

    @rule(wiped=st.booleans())
    def restart(self, wiped):
        """Another pod-watcher takes over, perhaps on an empty bus."""
        self.runs += 1
        if wiped:
            self.bench.bus.clear()
        self.bench.calls.clear()
        self.bench.core = ClusterWatcher(RunId(f"w{self.runs}"), RULES)
        self.bench.start()

    @invariant()
    def bound_at_most_once(self):
        """No pod is opened twice, or written more than once."""
        assert len(set(self.bench.api.opened)) == len(self.bench.api.opened)
        assert set(self.bench.api.opened) <= self.bound
        assert all(count == 1 for count in self.bench.api.object_writes.values()), "one write to a pod"

    @invariant()
    def withdrawn_only_when_it_may_be(self):
        words, self.withdrawn_checked = self.bench.words[self.withdrawn_checked :], len(self.bench.words)
        for subject, word in words:
            if isinstance(word, RequestWithdrawn):
                uid = subject.rpartition(".")[2]
                pod = self.bench.api.find(uid)
                assert pod is None or over(pod), f"{uid} was withdrawn and may still run"
                if word.cause == "containers ended":
                    versions = [each for _, each in self.bench.api.history if each["metadata"]["uid"] == uid]
                    assert any(over(each) for each in versions), "nothing ever showed that it had ended"

    def teardown(self):
        """In the end everything is as it should be, once the pod-watcher has looked and its calls are answered."""
        self.bench.resume()
        self.bench.list()
        self.bench.pass_time(130)
        for pod in self.bench.api.pods.values():
            if over(pod) or not pod["metadata"]["labels"]:
                continue
            uid, gates = pod["metadata"]["uid"], pod["spec"].get("schedulingGates", [])
            if {"name": QUEUE} in gates:
                assert self.bench.word(uid) is None, f"{uid} asks before its queue lets it in"
                continue
            assert isinstance(self.bench.word(uid), AllocationRequested), f"no request for {uid}"
            answered = f"sluice.binding.{uid}" in self.bench.bus
            if answered and not pod["metadata"].get("deletionTimestamp"):
                assert gates != [{"name": GATE}], f"{uid} has its slice and waits"
        for subject, word in self.bench.bus.items():
            if subject.startswith("sluice.request.") and isinstance(word, AllocationRequested):
                uid = subject.rpartition(".")[2]
                pod = self.bench.api.find(uid)
                assert pod is not None, f"{uid} is gone and keeps its slice"
                assert not over(pod), f"{uid} is over and keeps its slice"
        super().teardown()


def over(pod):
    states = [each["state"] for each in pod["status"].get("containerStatuses", [])]
    final = pod["status"]["phase"] in {"Succeeded", "Failed"} or pod["metadata"].get("deletionTimestamp")
    return bool(final and states and all("terminated" in state for state in states))


TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
