#!/bin/sh
# Takes Sluice out of a cluster and leaves no pod behind a gate:
#
#     sh deploy/kubernetes/uninstall.sh gates     open our gates, and gate no new pod (the webhook's rule is removed)
#     sh deploy/kubernetes/uninstall.sh all       everything, in the order in which nothing gets stuck
#
# A pod that waited can never get a slice then. One that a controller owns is deleted, for its controller creates it again,
# without Sluice; of a bare pod only the gate is removed, and it is named, for its owner has to create it again.
# `all` ends with an error before it removes an agent while pods with slices are left, for they could not end without it,
# or slices, which would stay on the GPUs. WAIT_S says how long it waits for both (120 s each), and for the nodes to be
# cleaned: a pod in the place of each agent removes mounts, sockets and directories there; what it could not is named.
# LEAVE_SLICES=true leaves slices where they are, as on nodes that are gone.
# Needs the rights of a cluster administrator.
set -eu

KUBECTL=${KUBECTL:-kubectl}
GATE=sluice.dev/slice
WAIT_S=${WAIT_S:-120}
LEAVE_SLICES=${LEAVE_SLICES:-false}

# An owner that is no controller (the hub of a notebook, say) only takes the pod along when it goes itself.
gated='{{range .items}}{{$pod := .}}{{$kind := "bare"}}'
gated=$gated'{{range .metadata.ownerReferences}}{{if .controller}}{{$kind = "owned"}}{{end}}{{end}}'
gated=$gated'{{range .spec.schedulingGates}}{{if eq .name "sluice.dev/slice"}}'
gated=$gated'{{$pod.metadata.namespace}} {{$pod.metadata.name}} {{$pod.metadata.uid}} '
gated=$gated'{{$kind}}{{"\n"}}{{end}}{{end}}{{end}}'

open_gates() {
    # Not only those with our label: a gate may have been written by hand.
    waiting=$($KUBECTL get pods --all-namespaces --output "go-template=$gated")
    [ -n "$waiting" ] || { echo "no pod waits at $GATE"; return 0; }
    echo "$waiting" | while read -r namespace pod uid kind; do
        # The list without our gate, by its name and whatever its place; other gates stay. The UID keeps a pod that was
        # created again under this name from it.
        patch="{\"metadata\":{\"uid\":\"$uid\"},\"spec\":{\"schedulingGates\":[{\"name\":\"$GATE\",\"\$patch\":\"delete\"}]}}"
        if [ "$kind" = owned ]; then
            $KUBECTL delete pod --namespace "$namespace" "$pod" --wait=false --ignore-not-found ||
                echo "the pod $namespace/$pod was not deleted (above says why): if it waits still, run this again" >&2
        else
            if $KUBECTL patch pod --namespace "$namespace" "$pod" --type strategic --patch "$patch" > /dev/null; then
                echo "pod $namespace/$pod has no gate any more, and no slice: delete and create it again"
            else
                echo "the gate of pod $namespace/$pod was not opened (above says why): if it is there still, run this again" >&2
            fi
        fi
    done
}

# One that has ended holds no device, and the kubelet needs no driver for it any more.
pods_left() {
    $KUBECTL get pods --all-namespaces --selector sluice.dev/managed --no-headers \
        --field-selector status.phase!=Succeeded,status.phase!=Failed \
        --output custom-columns=:metadata.namespace,:metadata.name
}

# What is ours on each GPU, as the mirror says it; instances from before Sluice and quarantined ones stay.
sliced='{{range .items}}{{$gpu := .metadata.name}}{{with .status}}{{range .slices}}'
sliced=$sliced'{{if and (ne .state "Foreign") (ne .state "Quarantined")}}{{$gpu}} {{.place}}{{"\n"}}{{end}}{{end}}{{end}}{{end}}'

slices_left() {
    mirror=$($KUBECTL get customresourcedefinition gpus.sluice.dev --ignore-not-found --output name) || return 1
    [ -z "$mirror" ] || $KUBECTL get gpus.sluice.dev --output "go-template=$sliced"
}

# In the place of each agent: its driver's container with another command, without the agent. It enters the node's mounts
# (the agent's pod has the node's processes) and is ready when it has removed all.
clean='trap \"exit 0\" TERM; until /opt/sluice/bin/run clean-node --of-process 1; do sleep 5 & wait $!; done; '
clean=$clean': > /tmp/cleaned; while :; do sleep 3600 & wait $!; done'
cleaner='{"spec":{"updateStrategy":{"rollingUpdate":{"maxUnavailable":"100%"}},"template":{
  "metadata":{"labels":{"sluice.dev/cleans-node":"true"}},
  "spec":{"runtimeClassName":null,"containers":[
    {"name":"node-agent","$patch":"delete"},
    {"name":"credentials","$patch":"delete"},
    {"name":"csi","livenessProbe":null,"command":["/bin/sh","-c","'$clean'"],
     "readinessProbe":{"grpc":null,"exec":{"command":["test","-e","/tmp/cleaned"]},"periodSeconds":2}}]}}}}'
agents="--namespace sluice-nodes --selector app.kubernetes.io/part-of=sluice,app.kubernetes.io/component=node-agent"

# Whether a pod has cleaned its node, and which node that is.
cleaned='{{range .items}}{{$clean := ""}}{{if .metadata.labels}}{{if index .metadata.labels "sluice.dev/cleans-node"}}'
cleaned=$cleaned'{{range .status.conditions}}{{if and (eq .type "Ready") (eq .status "True")}}{{$clean = "yes"}}{{end}}{{end}}'
cleaned=$cleaned'{{end}}{{end}}{{if $clean}}clean {{else}}not {{end}}{{.spec.nodeName}}{{"\n"}}{{end}}'

nodes_uncleaned() {
    wanted=$($KUBECTL get daemonset --namespace sluice-nodes sluice-node-agent --ignore-not-found \
        --output 'jsonpath={.status.desiredNumberScheduled}') || return 1
    # shellcheck disable=SC2086 # several words
    pods=$($KUBECTL get pods $agents --output "go-template=$cleaned") || return 1
    [ "$(echo "$pods" | grep -c '^clean ')" -lt "${wanted:-0}" ] || return 0
    # Between an agent's end and the next pod a node has none.
    echo "$pods" | sed -n 's/^not //p' | grep . || echo "(a node without a pod of Sluice)"
}

clean_nodes() {
    found=$($KUBECTL get daemonset --namespace sluice-nodes sluice-node-agent --ignore-not-found --output name)
    [ -n "$found" ] || return 0
    $KUBECTL patch daemonset --namespace sluice-nodes sluice-node-agent --type strategic --patch "$cleaner" > /dev/null &&
        wait_for_none "nodes to be cleaned" nodes_uncleaned && return 0
    echo "these nodes were not cleaned: there, unmount what is below /run/sluice, and remove it and slice.sluice.dev*, gpu.sluice.dev* in" \
        "the kubelet's plugins and plugins_registry" >&2
    echo "${left:-all}" >&2
    # shellcheck disable=SC2086 # several words
    $KUBECTL logs $agents --container csi --tail 2 --prefix >&2 || true
}

# WHAT-IT-WAITS-FOR COMMAND: until the command prints nothing; else what is left is in `left`. A command that fails says
# nothing about what is left: the program ends, and has removed no agent.
wait_for_none() {
    until=$(($(date +%s) + WAIT_S))
    said=
    while :; do
        left=$($2) || { echo "cannot see whether there are $1: run this again" >&2; exit 1; }
        [ -n "$left" ] || return 0
        [ "$(date +%s)" -lt "$until" ] || return 1
        [ -n "$said" ] || echo "waits up to $WAIT_S s for $1: $(echo "$left" | wc -l) left"
        said=yes
        sleep 2
    done
}

# First new pods get no gate, then gated pods lose theirs.
gates() {
    $KUBECTL delete mutatingwebhookconfiguration sluice --ignore-not-found
    open_gates
}

all() {
    $KUBECTL delete mutatingwebhookconfiguration sluice --ignore-not-found
    for policy in sluice-keep sluice-no-side-door sluice-left-alone sluice-bindings sluice-claims sluice-claim-requests; do
        $KUBECTL delete validatingadmissionpolicybinding "$policy" --ignore-not-found
        $KUBECTL delete validatingadmissionpolicy "$policy" --ignore-not-found
    done
    $KUBECTL delete deployment --namespace sluice-system --ignore-not-found sluice-webhook
    open_gates
    # The kubelet lets a pod with our volume end only while the driver answers.
    wait_for_none "pods with slices to end" pods_left || {
        echo "these pods still have slices, or a volume for one; delete them, then run this again:" >&2
        echo "$left" >&2
        return 1
    }
    # All services still run: the slices of those pods are destroyed now.
    if [ "$LEAVE_SLICES" != true ]; then
        wait_for_none "slices to be taken off GPUs" slices_left || {
            echo "these GPUs still have slices of ours; run this again, or with LEAVE_SLICES=true to leave them there:" >&2
            echo "$left" >&2
            return 1
        }
    fi
    clean_nodes
    $KUBECTL delete namespace --ignore-not-found sluice-nodes sluice-system
    $KUBECTL delete csidriver --ignore-not-found slice.sluice.dev
    # Servers before 1.34 have no such kind.
    if $KUBECTL get --raw /apis/resource.k8s.io/v1 > /dev/null 2>&1; then
        $KUBECTL delete deviceclass --ignore-not-found sluice.dev
        # NVIDIA's names stay where they are those of NVIDIA's driver.
        for class in gpu.nvidia.com mig.nvidia.com; do
            $KUBECTL delete deviceclass --ignore-not-found -l sluice.dev/managed=true --field-selector "metadata.name=$class"
        done
    fi
    $KUBECTL delete customresourcedefinition --ignore-not-found gpus.sluice.dev
    $KUBECTL delete clusterrolebinding --ignore-not-found sluice-pod-watcher sluice-webhook
    $KUBECTL delete clusterrole --ignore-not-found sluice-pod-watcher sluice-webhook sluice-view-gpus
    $KUBECTL delete priorityclass --ignore-not-found sluice-node sluice-control sluice-capacity
}

case "${1:-}" in
    gates) gates ;;
    all) all ;;
    *) echo "usage: $0 gates | all" >&2; exit 2 ;;
esac
