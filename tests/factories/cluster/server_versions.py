"""What differs between versions of the API server that tests run on."""

from factories.cluster.kubernetes import Cluster

TIMED_SINCE = 36
"""The first minor version that keeps the time of an allocation (DRADeviceBindingConditions); others drop it unread."""


async def minor(kube: Cluster) -> int:
    """Of the server's version; the fake's answers are those of the newest."""
    return 99 if kube.fake is not None else int((await kube.get("/version")).body["minor"].rstrip("+"))


async def keeps_times(kube: Cluster) -> bool:
    return await minor(kube) >= TIMED_SINCE
