"""What the pod-watcher may be told."""

from pathlib import Path

from sluice.contracts.ids import SourceName, is_token
from sluice.runtime.settings import CommonSettings
from sluice_pod_watcher.core.rules import FOLDER, Rules


class PodWatcherSettings(CommonSettings, frozen=True, kw_only=True):
    """Which folder it reads, for whom it asks, and the tunables of `Rules`."""

    pods_dir: Path
    """The folder of Pod manifests (`*.yaml`, `*.yml`, `*.json`; no sub-folders). It must exist."""
    source: str = FOLDER
    """For whom it asks. Two folders need two names: each source withdraws what it does not list."""
    fleet_file: Path | None = None
    """Tells what simulated nodes have besides GPUs."""
    max_gpus_per_node: int = 8
    relist_s: float = 5.0
    gone_grace_s: float = 1.0
    closing_ttl_s: int = 4 * 3600
    tick_s: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what would stop the pod-watcher from working."""
        if not is_token(self.source):
            raise ValueError(f"source = {self.source!r}: letters, digits, '-' and '_', at most 200 of them")
        if not 1 <= self.max_gpus_per_node <= 64:
            raise ValueError(f"max_gpus_per_node = {self.max_gpus_per_node}: from 1 to 64")
        if self.closing_ttl_s < 1:
            raise ValueError("closing_ttl_s is whole seconds, at least 1")
        if not 0.1 <= self.relist_s <= 3600 or not 0 <= self.gone_grace_s <= 3600 or not 0.01 <= self.tick_s <= 1:
            raise ValueError("relist_s is from 0.1 to 3600, gone_grace_s from 0 to 3600, tick_s from 0.01 to 1")

    def rules(self) -> Rules:
        """The part that the core takes."""
        return Rules(
            source=SourceName(self.source),
            max_gpus_per_node=self.max_gpus_per_node,
            relist_s=self.relist_s,
            gone_grace_s=self.gone_grace_s,
            closing_ttl_s=self.closing_ttl_s,
        )
