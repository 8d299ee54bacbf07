#!/bin/sh
# Takes Sluice out of a cluster where it was applied without Helm, and leaves no pod behind a gate:
#
#     sh deploy/kubernetes/uninstall.sh gates     open our gates, and gate no new pod (the webhook's rule is removed)
#     sh deploy/kubernetes/uninstall.sh all       everything, in the order in which nothing gets stuck
#
# A pod that waited can never get a slice then. One that a controller owns is deleted, for its controller creates it again,
# without Sluice; of a bare pod only the gate is removed, and it is named, for its owner has to create it again.
# `all` ends with an error before it removes an agent while pods with slices are left, for they could not end without it,
# or slices, which would stay on the GPUs. WAIT_S says how long it waits for each (90 s), and for the nodes to be
# cleaned: a pod in the place of each agent removes mounts, sockets and directories there; what it could not is named.
# LEAVE_SLICES=true leaves slices where they are, as on nodes that are gone.
# Needs the rights of a cluster administrator (KUBECONFIG: one file), and this repository after `make setup`.
set -eu

KUBECTL=${KUBECTL:-kubectl}
PROGRAM=${PROGRAM:-$(dirname "$0")/../../.venv/bin/sluice-pod-watcher}
config=${KUBECONFIG:-$HOME/.kube/config}
ours=app.kubernetes.io/part-of=sluice

# In a shell of its own: what is set for the console, say, is no setting of this program.
prepare() (
    for name in $(env | sed -n 's/^\(SLUICE_[A-Z0-9_]*\)=.*/\1/p'); do unset "$name"; done
    SLUICE_POD_WATCHER_ROLE=uninstall SLUICE_POD_WATCHER_UNINSTALL=$1 SLUICE_POD_WATCHER_KUBECONFIG=$config \
        SLUICE_POD_WATCHER_UNINSTALL_WAIT_S=${WAIT_S:-90} SLUICE_POD_WATCHER_LEAVE_SLICES=${LEAVE_SLICES:-false} \
        SLUICE_LOG_FORMAT=text "$PROGRAM"
)

all() {
    prepare all
    kinds=validatingadmissionpolicybinding,validatingadmissionpolicy,csidriver,clusterrolebinding,clusterrole,priorityclass
    # Servers before 1.34 have no such kind.
    if $KUBECTL get --raw /apis/resource.k8s.io/v1 > /dev/null 2>&1; then kinds=$kinds,deviceclass; fi
    $KUBECTL delete namespace --ignore-not-found sluice-nodes sluice-system
    $KUBECTL delete "$kinds" --ignore-not-found --selector $ours
    $KUBECTL delete customresourcedefinition --ignore-not-found gpus.sluice.dev
}

case "${1:-}" in
    gates) prepare gates ;;
    all) all ;;
    *) echo "usage: $0 gates | all" >&2; exit 2 ;;
esac
