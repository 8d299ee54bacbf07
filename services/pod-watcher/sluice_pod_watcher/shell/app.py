"""Run the application of a role. Only a cluster's role imports what clusters need: `sluice up` starts a folder."""

from sluice.runtime.service import Service
from sluice_pod_watcher.settings import PodWatcherSettings


async def serve(service: Service[PodWatcherSettings]) -> None:
    """Run the role of the settings until cancelled. Raises ServiceError or BusError."""
    if service.settings.role == "folder":
        from sluice_pod_watcher.shell.folder.app import serve_folder  # noqa: PLC0415 - see above

        await serve_folder(service)
    elif service.settings.role == "callout":
        from sluice_pod_watcher.shell.callout.app import serve_callout  # noqa: PLC0415 - see above

        await serve_callout(service)
    else:
        from sluice_pod_watcher.shell.cluster_app import serve_cluster  # noqa: PLC0415 - see above

        await serve_cluster(service)
