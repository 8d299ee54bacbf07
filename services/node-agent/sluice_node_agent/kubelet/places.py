"""Where a kubelet looks for its plugins, below its root directory."""

from pathlib import PurePath


def plugin_path(kubelet_root: PurePath, driver: str) -> PurePath:
    """The directory of a driver's own sockets."""
    return kubelet_root / "plugins" / driver


def registration_socket(kubelet_root: PurePath, driver: str) -> PurePath:
    """The socket in the folder that the kubelet watches."""
    return kubelet_root / "plugins_registry" / f"{driver}-reg.sock"
