"""List and watch ResourceClaims and DeviceClasses, where the API server has them in v1 (Kubernetes 1.34 and newer). All
claims are watched: a user's own has no label of ours. The core keeps a few fields of each."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.retry import Backoff
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.shell.kube.claim_writer import RESOURCE_V1
from sluice_pod_watcher.shell.kube.client import KubeApi, KubeError
from sluice_pod_watcher.shell.kube.reflector import Offer, Reflector

ABSENT = 404
ASK_AGAIN_S = 300.0  # an API server without ResourceClaims may be upgraded


@dataclass(slots=True)
class ClaimInformer:
    """The watch of one process, from the moment `wanted` is set."""

    api: KubeApi
    clock: Clock
    offer: Offer
    resync_s: float
    wanted: asyncio.Event
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 30.0))

    async def run(self) -> None:
        await self.wanted.wait()
        while not await self._is_served():
            await self.clock.sleep(ASK_AGAIN_S)
        claims = self._reflector("claims", "resourceclaims", events.ClaimSeen, events.ClaimGone)
        classes = self._reflector("classes", "deviceclasses", events.ClassSeen, events.ClassGone)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(claims.run(), name="watch resourceclaims")
            tasks.create_task(classes.run(), name="watch deviceclasses")

    def _reflector(
        self,
        what: events.ListedKind,
        resource: str,
        seen: Callable[[events.Raw], events.Event],
        gone: Callable[[events.Raw], events.Event],
    ) -> Reflector:
        path = f"{RESOURCE_V1}/{resource}"
        return Reflector(self.api, self.clock, what, path, "", seen, gone, self.offer, resync_s=self.resync_s)

    async def _is_served(self) -> bool:
        while True:
            try:
                await self.api.call("GET", RESOURCE_V1)
            except KubeError as error:
                if error.status == ABSENT:
                    await self.offer(events.ClaimsServed(served=False))
                    return False
                pause_s = max(self.backoff.next_s(), error.retry_after_s)
                logs.get("kube", what="claims").info(
                    "asks again for ResourceClaims", why=error.message, pause_s=pause_s
                )
                await self.clock.sleep(pause_s)
            else:
                await self.offer(events.ClaimsServed(served=True))
                return True
