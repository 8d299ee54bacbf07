"""Write the objects that `kubectl get gpus` shows: a status and nothing else, never read back. Without the
CustomResourceDefinition only these writes fail: the core pauses between tries."""

from dataclasses import dataclass

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.kube.names import CRD_GROUP, CRD_PLURAL
from sluice.contracts.reasons import shorten
from sluice.runtime import logs
from sluice.runtime.core_runner import Executor
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.shell.kube.client import JSON_PATCH, KubeApi, KubeError
from sluice_pod_watcher.shell.kube.reflector import as_it_is

VERSION = "v1alpha1"
GPUS = f"/apis/{CRD_GROUP}/{VERSION}/{CRD_PLURAL}"
IN_FLIGHT_MAX = 4
ABSENT, PRESENT = 404, 409


@dataclass(slots=True)
class GpuObjectWriter:
    """The objects of one cluster."""

    api: KubeApi

    def executors(self) -> dict[type, Executor[events.Event]]:
        return {
            events.MirrorGpu: Executor(self._write, limit=IN_FLIGHT_MAX, quiet=True),
            events.UnmirrorGpu: Executor(self._delete, limit=IN_FLIGHT_MAX, quiet=True),
        }

    async def list(self) -> events.GpusListed:
        """The existing objects; none when they cannot be listed, and then leftovers stay."""
        try:
            items = as_it_is(await self.api.call("GET", GPUS)).get("items") or []
        except (KubeError, *NOT_READABLE) as error:
            logs.get("kube").warning("the objects of gpus.sluice.dev cannot be listed", why=shorten(str(error), 300))
            return events.GpusListed(())
        return events.GpusListed(tuple(str(item["metadata"]["name"]) for item in items))

    async def _write(self, wanted: events.MirrorGpu) -> events.Event:
        # The whole status is replaced: a merge would keep the profiles of an earlier GPU.
        path, body = f"{GPUS}/{wanted.name}/status", [{"op": "add", "path": "/status", "value": dict(wanted.status)}]
        try:
            try:
                await self.api.call("PATCH", path, body=body, content_type=JSON_PATCH)
            except KubeError as error:
                if error.status != ABSENT:
                    raise
                await self._create(wanted.name)  # a status in it would be dropped (tried)
                await self.api.call("PATCH", path, body=body, content_type=JSON_PATCH)
        except KubeError as error:
            return events.GpuNotMirrored(wanted.name, str(error))
        return events.GpuMirrored(wanted.name)

    async def _create(self, name: str) -> None:
        body = {"apiVersion": f"{CRD_GROUP}/{VERSION}", "kind": "Gpu", "metadata": {"name": name}}
        try:
            await self.api.call("POST", GPUS, body=body)
        except KubeError as error:
            if error.status != PRESENT:
                raise

    async def _delete(self, wanted: events.UnmirrorGpu) -> events.Event:
        try:
            await self.api.call("DELETE", f"{GPUS}/{wanted.name}")
        except KubeError as error:
            if error.status != ABSENT:
                return events.GpuNotMirrored(wanted.name, str(error))
        return events.GpuMirrored(wanted.name)
