"""The eviction API with and without disruption budgets."""

from factories.cluster.kubernetes import STRATEGIC, Cluster, Json, Reply, pod

READY = [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]
ANOTHER = "11111111-1111-1111-1111-111111111111"


async def running(kube: Cluster, pods: str, *, phase: str = "Running", **labels: str) -> Json:
    """A pod on a node without a kubelet, whose status says that it runs."""
    node = await kube.node()
    body = pod(gates=(), schedulerName="absent")
    body["metadata"]["labels"] = labels
    await kube.create(pods, body)
    await kube.create(f"{pods}/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}})
    if phase == "Pending":
        return (await kube.get(f"{pods}/p")).body
    reply = await kube.patch(f"{pods}/p/status", {"status": {"phase": phase, "conditions": READY}}, STRATEGIC)
    assert reply.code == 200
    return reply.body


async def budget(kube: Cluster, namespace: str, name: str = "pdb", **labels: str) -> None:
    """One of these pods must stay; known to the server when it says so."""
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    await kube.create(path, {"metadata": {"name": name}, "spec": spec})
    if kube.fake is None:
        await kube.until(
            lambda: kube.get(f"{path}/{name}"),
            lambda reply: reply.body.get("status", {}).get("observedGeneration", 0) >= 1,
        )


async def evict(kube: Cluster, pods: str, **options: object) -> Reply:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    return await kube.post(f"{pods}/p/eviction", {**body, "deleteOptions": options} if options else body)


async def test_a_used_up_budget_refuses_and_says_which(kube: Cluster, namespace: str, pods: str) -> None:
    """429, with the budget's name in the causes; a dry run says the same."""
    await budget(kube, namespace, app="a")
    await running(kube, pods, app="a")

    def refused(reply: Reply) -> bool:
        return reply.code == 429 and "healthy pods" in str(reply.body["details"].get("causes"))

    reply = await kube.until(lambda: evict(kube, pods, dryRun=["All"]), refused)
    again = await evict(kube, pods)
    assert reply.reason == "TooManyRequests"
    assert reply.message == "Cannot evict pod as it would violate the pod's disruption budget."
    (cause,) = again.body["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert cause["message"] == "The disruption budget pdb needs 1 healthy pods and has 1 currently"


async def test_no_budget_holds_a_gated_pod(kube: Cluster, namespace: str, pods: str) -> None:
    """It is gone at once: a budget does not protect waiting pods."""
    await budget(kube, namespace, app="a")
    body = pod()
    body["metadata"]["labels"] = {"app": "a"}
    await kube.post(pods, body)
    assert (await evict(kube, pods)).code == 201
    assert (await kube.get(f"{pods}/p")).code == 404


async def test_a_bound_pod_that_never_was_ready_is_marked_and_goes(kube: Cluster, namespace: str, pods: str) -> None:
    """Its budget is ignored too; the condition says why it went."""
    await budget(kube, namespace, app="a")
    await running(kube, pods, phase="Pending", app="a")
    reply = await evict(kube, pods)
    left = (await kube.get(f"{pods}/p")).body
    assert reply.code == 201
    assert left["metadata"]["deletionTimestamp"]
    (condition,) = [each for each in left["status"]["conditions"] if each["type"] == "DisruptionTarget"]
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")


async def test_the_grace_that_is_asked_for_is_given(kube: Cluster, pods: str) -> None:
    """Without a budget an eviction is a deletion."""
    await running(kube, pods)
    assert (await evict(kube, pods, gracePeriodSeconds=7)).code == 201
    assert (await kube.get(f"{pods}/p")).body["metadata"]["deletionGracePeriodSeconds"] == 7
    assert (await evict(kube, pods)).code == 201


async def test_another_pod_of_the_name_is_not_evicted(kube: Cluster, pods: str) -> None:
    """Why the uid is always sent."""
    await running(kube, pods)
    reply = await evict(kube, pods, preconditions={"uid": ANOTHER})
    reply.refused(409, "Conflict", "the UID in the precondition (", "does not match")
    assert "deletionTimestamp" not in (await kube.get(f"{pods}/p")).body["metadata"]


async def test_a_pod_that_is_gone_is_not_found(kube: Cluster, pods: str) -> None:
    """An eviction that came too late has succeeded in its way."""
    assert (await evict(kube, pods)).code == 404


async def test_two_budgets_cannot_be_kept(kube: Cluster, namespace: str, pods: str) -> None:
    """A 500 that no retry will mend."""
    await budget(kube, namespace, "one", app="a")
    await budget(kube, namespace, "two", app="a")
    await running(kube, pods, app="a")
    reply = await evict(kube, pods)
    assert reply.code == 500
    text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    assert text in reply.message


async def test_a_deletion_for_another_uid_is_refused(kube: Cluster, pods: str) -> None:
    """The same precondition holds for DELETE."""
    await running(kube, pods)
    body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": ANOTHER}}
    assert (await kube.delete(f"{pods}/p", body)).code == 409
