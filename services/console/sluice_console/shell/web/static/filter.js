/**
 * What a person means by the words in the filter: every word must be found on a GPU or its node.
 * @module
 * @import {Gpu, NodeRow} from "./store.js"
 */
import { hasRoom } from "./bars.js";

const TROUBLE_STATES = new Set(["stale", "not open", "removed"]);

/** @param {NodeRow} node @param {Gpu | undefined} gpu @returns {Record<string, boolean>} */
function is(node, gpu) {
  const places = gpu?.places ?? [];
  const cordoned = Boolean(gpu?.cordoned) || node.state === "cordoned" || node.state === "draining";
  const quarantined = places.some((place) => place.state === "quarantined" || place.out_of_use);
  const ill = Boolean(gpu?.trouble) || places.some((place) => place.ill);
  const stale = TROUBLE_STATES.has(node.state);
  return {
    room: gpu !== undefined && !gpu.trouble && !stale && !cordoned && hasRoom(gpu),
    empty: gpu !== undefined && places.every((place) => place.state === "free" || place.state === "unusable"),
    changing: places.some((place) =>
      [place.state, ...(place.shares ?? []).map((share) => share.state)].some((s) => s === "making" || s === "ending")),
    foreign: places.some((place) => place.state === "foreign"),
    trouble: ill || quarantined || stale || (node.warnings ?? []).length > 0,
    stale: node.state === "stale",
    cordoned,
    quarantined,
  };
}

/** @param {NodeRow} node */
function nodeText(node) {
  return [node.node, node.state, node.pool ?? "", node.why ?? ""].join(" ").toLowerCase();
}

/** @param {Gpu} gpu */
function gpuText(gpu) {
  const parts = [gpu.uuid, gpu.model];
  for (const place of gpu.places ?? []) {
    parts.push(place.owner ?? "", place.profile ?? "", place.request ?? "", place.state);
    for (const share of place.shares ?? []) parts.push(share.owner, share.request);
  }
  return parts.join(" ").toLowerCase();
}

/**
 * @param {string} query
 * @returns {string[]} its words
 */
export function words(query) {
  return query.toLowerCase().split(/\s+/).filter(Boolean).slice(0, 16);
}

/**
 * Which GPUs of a node are meant.
 * @param {string[]} wanted the words of the query
 * @param {NodeRow} node
 * @param {Gpu[]} gpus
 * @returns {{shown: boolean, dimmed: Set<string>}} whether the node shows, and the UUIDs of its GPUs that are not meant
 */
export function match(wanted, node, gpus) {
  /** @type {Set<string>} */
  const dimmed = new Set();
  if (wanted.length === 0) return { shown: true, dimmed };
  const ofNode = nodeText(node);
  /** @param {Gpu | undefined} gpu */
  const fits = (gpu) => {
    const text = gpu === undefined ? ofNode : `${ofNode} ${gpuText(gpu)}`;
    const marks = is(node, gpu);
    return wanted.every((word) => (word.startsWith("is:") ? marks[word.slice(3)] === true : text.includes(word)));
  };
  if (gpus.length === 0) return { shown: fits(undefined), dimmed };
  for (const gpu of gpus) if (!fits(gpu)) dimmed.add(gpu.uuid);
  return { shown: dimmed.size < gpus.length, dimmed };
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
