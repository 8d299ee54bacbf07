"""Create and delete placeholder pods, a few at once. No retries: the core tries again."""

from collections.abc import Callable
from dataclasses import dataclass

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice.runtime.core_runner import Executor
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.shell.kube.client import KubeApi, KubeError
from sluice_pod_watcher.shell.kube.pod_writer import NOT_SENT
from sluice_pod_watcher.shell.kube.reflector import as_it_is

IN_FLIGHT_MAX = 4
GONE, ANOTHER = 404, 409


@dataclass(slots=True)
class PlaceholderWriter:
    """The placeholders of one cluster."""

    api: KubeApi
    holds: Callable[[], bool]  # whether this process holds the lease at this moment

    def executors(self) -> dict[type, Executor[events.Event]]:
        return {
            events.CreatePlaceholder: Executor(self._create, limit=IN_FLIGHT_MAX),
            events.DeletePlaceholder: Executor(self._delete, limit=IN_FLIGHT_MAX),
        }

    async def _create(self, wanted: events.CreatePlaceholder) -> events.Event:
        if not self.holds():
            return events.PlaceholderNotWritten(wanted.name, NOT_SENT)
        path = f"/api/v1/namespaces/{wanted.namespace}/pods"
        try:
            return events.PlaceholderWritten(wanted.name, as_it_is(await self.api.call("POST", path, body=wanted.body)))
        except KubeError as error:
            return events.PlaceholderNotWritten(wanted.name, str(error))
        except NOT_READABLE as error:
            return events.PlaceholderNotWritten(wanted.name, f"the answer is not JSON: {shorten(str(error), 300)}")

    async def _delete(self, wanted: events.DeletePlaceholder) -> events.Event:
        if not self.holds():
            return events.PlaceholderNotWritten(wanted.name, NOT_SENT)
        path = f"/api/v1/namespaces/{wanted.namespace}/pods/{wanted.name}"
        try:
            await self.api.call("DELETE", path, body={"preconditions": {"uid": wanted.uid}, "gracePeriodSeconds": 0})
        except KubeError as error:
            if error.status not in {GONE, ANOTHER}:
                return events.PlaceholderNotWritten(wanted.name, str(error))
        return events.PlaceholderWritten(wanted.name, None)
