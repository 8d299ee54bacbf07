"""The node's CSI driver, for the volume that every GPU container mounts."""
