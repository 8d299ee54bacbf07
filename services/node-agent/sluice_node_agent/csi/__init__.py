"""The node's part of the volume that every GPU container mounts: a CSI driver that decides nothing."""
