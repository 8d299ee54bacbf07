"""Whether runtimes accept a CDI file: container-device-interface v1.1.1 (spec, edits, parser); unknown fields not."""

import re

_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]
_SPEC = {"cdiVersion", "kind", "annotations", "devices", "containerEdits"}
_EDITS = {"env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids"}
_NODE = {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}
_MOUNT = {"hostPath", "containerPath", "options", "type"}
_HOOK = {"hookName", "path", "args", "env", "timeout"}
_HOOKS = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}


def what_is_wrong(spec: dict) -> list[str]:
    """Everything for which a runtime would refuse the file, or one of its devices."""
    wrong = [f"field {name}" for name in set(spec) - _SPEC]
    vendor, _, name = spec["kind"].partition("/")
    wrong += [f"kind {spec['kind']}"] if not (_NAME.fullmatch(vendor) and _NAME.fullmatch(name)) else []
    devices = spec["devices"]
    wrong += ["no devices"] if not devices else []
    names = [device["name"] for device in devices]
    wrong += [f"name {each}" for each in names if not _DEVICE.fullmatch(each)]
    wrong += ["a name twice"] if len(set(names)) != len(names) else []
    every = [spec.get("containerEdits", {}), *(device["containerEdits"] for device in devices)]
    for edits in every:
        wrong += _wrong_with(edits)
    needed = _needed(spec, every)
    if spec["cdiVersion"] not in _VERSIONS:
        wrong.append(f"version {spec['cdiVersion']}")
    elif _VERSIONS.index(spec["cdiVersion"]) < _VERSIONS.index(needed):
        wrong.append(f"version {spec['cdiVersion']}, it needs {needed}")
    return wrong


def _wrong_with(edits: dict) -> list[str]:
    wrong = [f"edit {name}" for name in set(edits) - _EDITS]
    wrong += [f"env {each}" for each in edits.get("env", []) if each.find("=") <= 0]
    for node in edits.get("deviceNodes", []):
        wrong += [f"node field {name}" for name in set(node) - _NODE]
        wrong += [f"node {node}"] if not node["path"] or node.get("type", "") not in {"", "b", "c", "u", "p"} else []
        wrong += [f"permissions {node}"] if set(node.get("permissions", "")) - set("rwm") else []
        wrong += [f"no device {node}"] if not (node.get("type") and node.get("major")) else []
    for mount in edits.get("mounts", []):
        wrong += [f"mount field {name}" for name in set(mount) - _MOUNT]
        wrong += [f"mount {mount}"] if not (mount["hostPath"] and mount["containerPath"]) else []
    for hook in edits.get("hooks", []):
        wrong += [f"hook field {name}" for name in set(hook) - _HOOK]
        wrong += [f"hook {hook}"] if hook["hookName"] not in _HOOKS or not hook["path"].startswith("/") else []
    return wrong


def _needed(spec: dict, every: list[dict]) -> str:
    if any(edits.get("netDevices") for edits in every):
        return "1.1.0"
    if any(edits.get("intelRdt") or edits.get("additionalGids") for edits in every):
        return "0.7.0"
    if "annotations" in spec or "." in spec["kind"].partition("/")[2]:
        return "0.6.0"
    nodes = [node for edits in every for node in edits.get("deviceNodes", [])]
    if any(device["name"][0].isdigit() for device in spec["devices"]) or any("hostPath" in node for node in nodes):
        return "0.5.0"
    return "0.4.0" if any("type" in mount for edits in every for mount in edits.get("mounts", [])) else "0.3.0"
