"""The volume of tickets, and checks that no pod mounts it by hand or reaches it through the host's directories."""

from collections.abc import Iterator
from typing import Any

from sluice.contracts.admission.config import AdmissionConfig, leads_to, parts_of
from sluice.contracts.admission.pod_fields import Container, CsiVolume, Spec, VolumeMount
from sluice.contracts.admission.violations import Violation, forbidden
from sluice.contracts.kube.names import CSI_DRIVER, MOUNT_PATH, TICKET_SUB_PATH, VOLUME
from sluice.contracts.messages import Claim

OUR_VOLUME: dict[str, Any] = {"name": VOLUME, "csi": {"driver": CSI_DRIVER, "readOnly": True}}
OUR_MOUNT: dict[str, Any] = {"name": VOLUME, "mountPath": MOUNT_PATH, "subPathExpr": TICKET_SUB_PATH, "readOnly": True}
DEVICE_LIST = "nvidia-container-devices"
"""NVIDIA's runtime may read devices from mounts at /var/run/nvidia-container-devices/<device>."""


def validate_volumes(spec: Spec, config: AdmissionConfig) -> Iterator[Violation]:
    for volume in spec.volumes or ():
        field = f"spec.volumes[{volume.name}]"
        if volume.host_path is not None:
            found = leads_to(volume.host_path.path, config.host_directories)
            if found:
                why = f"leads to {found} of the node, which gives access to the slices of other pods"
                yield forbidden(f"{field}.hostPath.path", volume.host_path.path, why, "other directories of the host")
        if volume.csi is not None and volume.csi.driver == CSI_DRIVER and volume.name != VOLUME:
            yield forbidden(f"{field}.csi.driver", CSI_DRIVER, "Sluice adds its volume itself", "leave the volume out")
        elif volume.name == VOLUME and (
            volume.csi != CsiVolume(driver=CSI_DRIVER, read_only=True) or volume.host_path is not None
        ):
            yield forbidden("spec.volumes", VOLUME, "this name belongs to the volume that Sluice adds", "another name")


def validate_mounts(path: str, container: Container, claim: Claim | None) -> Iterator[Violation]:
    field = f"{path}.volumeMounts"
    for mount in container.volume_mounts or ():
        if mount.name == VOLUME:
            if claim is None or not _is_our_mount(mount):
                why = "Sluice mounts its volume itself, each container its own part of it"
                yield forbidden(field, f"{VOLUME} at {mount.mount_path}", why, "leave the mount out")
        elif claim is not None and parts_of(mount.mount_path)[: len(_MOUNT_PARTS)] == _MOUNT_PARTS:
            why = f"Sluice mounts the container's ticket at {MOUNT_PATH}"
            yield forbidden(field, f"{mount.name} at {mount.mount_path}", why, "another mountPath")
        elif DEVICE_LIST in mount.mount_path:
            why = "NVIDIA's runtime reads devices from mounts there, and Sluice sets them from what the pod is granted"
            yield forbidden(field, f"{mount.name} at {mount.mount_path}", why, "leave the mount out")


def lacks_volume(spec: Spec) -> bool:
    return not any(volume.name == VOLUME for volume in spec.volumes or ())


def lacks_mount(container: Container) -> bool:
    return not any(mount.name == VOLUME for mount in container.volume_mounts or ())


_MOUNT_PARTS = parts_of(MOUNT_PATH)


def _is_our_mount(mount: VolumeMount) -> bool:
    ours = (VOLUME, MOUNT_PATH, None, TICKET_SUB_PATH, True, None)
    propagation = None if mount.mount_propagation == "None" else mount.mount_propagation
    of_mount = (mount.name, mount.mount_path, mount.sub_path or None, mount.sub_path_expr, mount.read_only, propagation)
    return of_mount == ours
