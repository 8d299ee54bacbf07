"""Build the pod-watcher and run it: `python -m sluice_pod_watcher`, or `sluice-pod-watcher`."""

from sluice.runtime import sigint  # noqa: F401 - the first import, so that Ctrl-C ends the others quietly

# isort: split
import sys

from sluice.runtime import service, settings
from sluice_pod_watcher.settings import PodWatcherSettings
from sluice_pod_watcher.shell.app import serve


def main() -> int:
    return service.run(
        serve, lambda: settings.load(PodWatcherSettings, service="pod-watcher"), "pod-watcher", words=sys.argv[1:]
    )


if __name__ == "__main__":
    sys.exit(main())
