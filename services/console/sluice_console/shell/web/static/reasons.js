/**
 * Wait reasons in words. The code names are in `sluice.contracts.reasons` and docs/reasons.md.
 * @module
 */

/** @type {Record<string, string>} */
const WORDS = {
  NoNodeCanFit: "no node can ever fit it",
  NoNodes: "no nodes yet",
  NodeNotOpen: "node not open yet",
  NodeStale: "node does not answer",
  NodeCordoned: "node or GPU cordoned",
  NodeNotReady: "node not ready",
  NodeUnderPressure: "node under pressure",
  NodeLeaving: "node being removed",
  NodeNotNamed: "pod names another node",
  NodeSelectorMismatch: "node selector does not match",
  NodeTainted: "untolerated taint",
  NodeInsufficientCpu: "not enough CPU",
  NodeInsufficientMemory: "not enough host memory",
  NodeInsufficientPods: "node takes no more pods",
  NodePodsAtLimit: "node's limit of pods with slices",
  NodeInsufficientResource: "not enough of another resource",
  NodePodAntiAffinity: "pod anti-affinity",
  NodePodAffinity: "pod affinity",
  NodeTopologySpread: "topology spread",
  NodeTopologyLabelMissing: "topology label missing",
  NodeHostPortTaken: "host port in use",
  NodeVolumeElsewhere: "volume not accessible there",
  NodeWithoutHandOver: "no hand-over by ResourceClaim there",
  GpuUnhealthy: "GPU unhealthy",
  GpuModeNotFit: "GPU not set up for the mode",
  GpuModelMismatch: "another GPU model",
  GpuUuidMismatch: "not a named GPU",
  GpuNoSuchProfile: "no such profile",
  GpuLayoutFull: "no free place of that size",
  GpuNotInLayout: "not in the fixed layout",
  GpuInstancesTaken: "fixed instances in use",
  GpuEnginesUsedUp: "media engines in use",
  GpuNotIdle: "no idle GPU",
  GpuInsufficientMemory: "not enough GPU memory",
  GpuMemoryUnknown: "GPU memory unknown",
  GpuInsufficientSms: "not enough SMs",
  GpuTimeUsedUp: "not enough GPU time",
  GpuTenantsUsedUp: "maximum of MPS tenants",
  GpuOtherTrustDomain: "shared by another namespace or user",
  GpuAvoided: "slice failed there recently",
  NumaNotFit: "no NUMA node fits",
  OneGpuNotFit: "no GPU has room for all",
  TooFewGpusOnNode: "too few GPUs on one node",
  QuotaExceeded: "over quota",
  GroupIncomplete: "group not complete yet",
  GroupNotFit: "no room for the whole group",
  PlaceBeingFreed: "its place is being freed",
  PlacePromised: "reserved for pods before it",
  QueueFull: "queue full",
};

/** A reason in words; one of a newer version as its code name. @param {string} reason */
export function reasonText(reason) {
  return WORDS[reason] ?? reason;
}
