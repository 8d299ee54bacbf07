/**
 * Which slices and GPUs the words of the filter mean. The server parses the words; the rules are those of
 * `sluice_console.core.fleet.filters`.
 * @module
 * @import {Gpu, NodeRow, Place, RequestRow, Share} from "./store.js"
 * @typedef {{key: string, value: string, negated?: boolean}} Term
 * @typedef {{name: string, owner: string, request: string, states: Set<string>, text: string}} Slot
 */
import { hasRoom } from "./bars.js";

const OF_SLICES = new Set(["idle", "waiting", "changing", "foreign", "quarantined"]);
const OUT_OF_SERVICE = new Set(["stale", "not open", "removed"]);
const NO_NEW_PODS = new Set([...OUT_OF_SERVICE, "cordoned", "draining"]);
const NO_SLOT = new Set(["free", "unusable"]);
const CHANGING = new Set(["making", "ending"]);
const UUID_BEGINNING = "GPU-1a2b".length;
const WITHOUT_SLICE = new Set(["requested", "waiting", "making"]);

/** Whether a name is the value, in which `*` stands for anything. @param {string} value @param {string} text */
function isLike(value, text) {
  const pattern = value.split("*").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join(".*");
  return new RegExp(`^${pattern}$`).test(text.toLowerCase());
}

/** `gpu-2` is a name, and no UUID that begins with 2. @param {string} value @param {string} text @param {string} uuid */
function isIn(value, text, uuid) {
  return text.includes(value) || (value.length >= UUID_BEGINNING && uuid.toLowerCase().includes(value));
}

/** @param {string} value @param {Record<string, number>} counts */
export function fits(value, counts) {
  return Object.entries(counts).some(([profile, count]) =>
    count > 0 && (profile.toLowerCase() === value || profile.toLowerCase().startsWith(`${value}.`)));
}

/** Whether new slices may be placed on a GPU. @param {NodeRow} node @param {Gpu} gpu */
export function isUsable(node, gpu) {
  return !gpu.trouble && !gpu.cordoned && !NO_NEW_PODS.has(node.state);
}

/** @param {Term} term @param {NodeRow} node @param {Gpu} gpu */
function holdsOfGpu(term, node, gpu) {
  const places = gpu.places ?? [];
  switch (term.key === "is" ? term.value : term.key) {
    case "node": return isLike(term.value, gpu.node);
    case "model": return gpu.model.toLowerCase().includes(term.value);
    case "fits": return isUsable(node, gpu) && fits(term.value, gpu.fits ?? {});
    case "room": return isUsable(node, gpu) && hasRoom(gpu);
    case "empty": return places.every((place) => NO_SLOT.has(place.state));
    case "stale": return node.state === "stale";
    case "cordoned": return Boolean(gpu.cordoned) || node.state === "cordoned" || node.state === "draining";
    default: // trouble
      return Boolean(gpu.trouble) || OUT_OF_SERVICE.has(node.state) || (node.warnings ?? []).length > 0 ||
        places.some((place) => place.ill || place.out_of_use || place.state === "quarantined");
  }
}

/** The slices on a GPU: each share of a shared device is one. @param {Gpu} gpu @returns {Slot[]} */
export function slots(gpu) {
  return (gpu.places ?? []).filter((place) => !NO_SLOT.has(place.state)).flatMap((place) => {
    const shares = place.shares ?? [];
    if (shares.length === 0) return [slot(String(place.start), place, place.owner ?? "", place.request ?? "", place.state)];
    return shares.map((share) => slot(`${place.start}/${share.request}`, place, share.owner, share.request, share.state));
  });
}

/** @param {string} name @param {Place} place @param {string} owner @param {string} request @param {string} state @returns {Slot} */
function slot(name, place, owner, request, state) {
  const states = new Set([state]);
  if (place.out_of_use || place.state === "quarantined") states.add("quarantined");
  if (CHANGING.has(state)) states.add("changing");
  return { name, owner, request, states, text: `${owner} ${request} ${place.profile ?? ""} ${state}`.toLowerCase() };
}

/** @param {Term} term @param {Slot} each @param {Map<string, number>} idle */
function holdsOfSlot(term, each, idle) {
  const found = term.key === "" ? each.text.includes(term.value)
    : term.key === "team" ? isLike(term.value, each.owner.split("/")[0])
      : term.value === "idle" ? idle.has(each.request) : each.states.has(term.value);
  return found !== Boolean(term.negated);
}

/**
 * The slices of a GPU that are meant, all of them without a term about slices; null if the GPU is not meant.
 * @param {Term[]} terms @param {NodeRow} node @param {Gpu} gpu @param {Map<string, number>} idle
 * @returns {Set<string> | null}
 */
export function lit(terms, node, gpu, idle) {
  /** @type {Term[]} */
  const ofSlices = [];
  const digits = gpu.uuid.replace("GPU-", "");
  const text = `${gpu.node} ${digits} ${gpu.model} ${node.state} ${node.why ?? ""} ${node.pool ?? ""}`.toLowerCase();
  for (const term of terms) {
    if (term.key === "team" || (term.key === "is" && OF_SLICES.has(term.value))) ofSlices.push(term);
    else if (term.key === "") {
      if (!isIn(term.value, text, gpu.uuid)) ofSlices.push(term);
      else if (term.negated) return null;
    } else if (holdsOfGpu(term, node, gpu) === Boolean(term.negated)) return null;
  }
  const found = slots(gpu).filter((each) => ofSlices.every((term) => holdsOfSlot(term, each, idle)));
  return ofSlices.length > 0 && found.length === 0 ? null : new Set(found.map((each) => each.name));
}

/** @param {Term[]} terms @param {NodeRow} node */
function picksBareNode(terms, node) {
  const text = `${node.node} ${node.state} ${node.why ?? ""} ${node.pool ?? ""}`.toLowerCase();
  return terms.every((term) => (term.key === "node" ? isLike(term.value, node.node)
    : term.key === "" && text.includes(term.value)) !== Boolean(term.negated));
}

/**
 * What is meant on one node.
 * @param {Term[]} terms @param {NodeRow} node @param {Gpu[]} gpus @param {Map<string, number>} idle
 * @returns {{shown: boolean, lit: Map<string, Set<string>> | null, slices: number}} whether the node shows; by UUID the
 *   slices that are meant (GPUs that are not meant are missing), null for everything; and how many slices are meant,
 *   0 without a term about slices
 */
export function match(terms, node, gpus, idle) {
  if (terms.length === 0) return { shown: true, lit: null, slices: 0 };
  if (gpus.length === 0) return { shown: picksBareNode(terms, node), lit: null, slices: 0 };
  /** @type {Map<string, Set<string>>} */
  const found = new Map();
  let slices = 0;
  const isOfSlices = terms.some((term) => term.key === "" || term.key === "team" || OF_SLICES.has(term.value));
  for (const gpu of gpus) {
    const names = lit(terms, node, gpu, idle);
    if (names === null) continue;
    found.set(gpu.uuid, names);
    if (isOfSlices) slices += names.size;
  }
  return { shown: found.size > 0, lit: found, slices };
}

/** Whether a team's use is meant; only terms about teams matter. @param {Term[]} terms @param {string} team empty for those summed up */
export function picksTeam(terms, team) {
  return terms.every((term) => term.key !== "team" || (team !== "" && isLike(term.value, team)) !== Boolean(term.negated));
}

/** Whether a request without a slice is meant; terms about places do not matter. @param {Term[]} terms @param {RequestRow} row */
export function picksRequest(terms, row) {
  const text = `${row.namespace}/${row.name} ${row.request} ${row.state} ${row.ask ?? ""} ${row.message}`.toLowerCase();
  return terms.every((term) => {
    const found = term.key === "" ? text.includes(term.value)
      : term.key === "team" ? isLike(term.value, row.namespace)
        : term.key !== "is" ? undefined
          : term.value === "waiting" ? WITHOUT_SLICE.has(row.state)
            : term.value === "changing" ? CHANGING.has(row.state) : undefined;
    return found === undefined || found !== Boolean(term.negated);
  });
}

/**
 * Under which heading a node stands.
 * @param {NodeRow} node
 * @param {string} by `pool`, `model`, `state`, or nothing
 */
export function groupOf(node, by) {
  if (by === "pool") return node.pool || "no pool";
  if (by === "state") return node.state;
  if (by === "model") return Object.keys(node.models ?? {}).sort().join(", ").replaceAll("NVIDIA ", "") || "no GPU";
  return "";
}
