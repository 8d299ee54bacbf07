"""Where a kubelet looks for its plugins, below its root directory."""

from pathlib import PurePath

from sluice.contracts.dra.names import DRIVER


def plugin_path(kubelet_root: PurePath, driver: str) -> PurePath:
    """The directory of a driver's own sockets."""
    return kubelet_root / "plugins" / driver


def claims_socket(kubelet_root: PurePath) -> PurePath:
    """The socket of the plugin for ResourceClaims."""
    return plugin_path(kubelet_root, DRIVER) / "dra.sock"


def registration_socket(kubelet_root: PurePath, driver: str) -> PurePath:
    """The socket in the folder that the kubelet watches."""
    return kubelet_root / "plugins_registry" / f"{driver}-reg.sock"
