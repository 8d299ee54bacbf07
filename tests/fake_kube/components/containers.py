"""A container's environment and mounts as kubelet v1.36.2 derives them: it starts, or waits with a reason. Pure."""

import re
from collections.abc import Callable

from fake_kube.errors import Json
from fake_kube.requests.selectors import read

_KEYED = re.compile(r"^metadata\.(annotations|labels)\['([^']*)'\]$")
_REFERENCE = re.compile(r"\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
Ready = Callable[[str, str], bool]
"""Whether a directory of a pod's CSI volume is there: (pod uid, sub path)."""


class HeldError(Exception):
    """A container cannot start now; the text goes to its status."""


def environment(container: Json, pod: Json) -> dict[str, str]:
    """Its variables; of two with one name the later wins, and a missing annotation is an empty value."""
    resolved: dict[str, str] = {}
    for entry in container.get("env") or []:
        path = ((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        if path is None:
            resolved[entry["name"]] = entry.get("value") or ""
        elif found := _KEYED.match(path):
            resolved[entry["name"]] = (pod["metadata"].get(found[1]) or {}).get(found[2], "")
        else:
            resolved[entry["name"]] = read(pod, path) or ""
    return resolved


def start(container: Json, pod: Json, ready: Ready) -> tuple[dict[str, str], dict[str, str]]:
    """Its environment, and sub paths by mountPath. Raises HeldError: it waits in CreateContainerConfigError."""
    resolved = environment(container, pod)
    ours = {volume["name"] for volume in pod["spec"].get("volumes") or [] if "csi" in volume}
    paths: dict[str, str] = {}
    for mount in container.get("volumeMounts") or []:
        path = mount.get("subPath") or ""
        if mount.get("subPathExpr"):
            path = _expand(mount["subPathExpr"], resolved)
        if path.startswith("/"):
            raise HeldError(f"error SubPath `{path}` must not be an absolute path")
        if ".." in path.split("/"):
            raise HeldError(f"unable to provision SubPath `{path}`: must not contain '..'")
        if path and mount["name"] in ours and not ready(pod["metadata"]["uid"], path):
            what = f'volumeMount "{mount["name"]}" of container "{container["name"]}"'
            raise HeldError(f"failed to create subPath directory for {what}")
        paths[mount["mountPath"]] = path
    return resolved, paths


def _expand(expression: str, resolved: dict[str, str]) -> str:
    for name in _REFERENCE.findall(expression):
        if not resolved.get(name):
            raise HeldError(f"missing value for {name}")
    return _REFERENCE.sub(lambda found: resolved[found[1]], expression)
