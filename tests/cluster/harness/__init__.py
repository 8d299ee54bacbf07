"""
A real Kubernetes on one machine: control plane, kubelets, containerd and pod network, in namespaces of its own.

Nothing of the machine changes: a node's root file system, network, processes and cgroups are its own, and go with it.
"""
