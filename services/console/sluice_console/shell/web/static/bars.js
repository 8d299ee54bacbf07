/**
 * A GPU as a bar of its memory units: its stretches, their owners and labels. Draws nothing.
 * @module
 * @import {Gpu, Place, Share} from "./store.js"
 */

/**
 * @typedef {{start: number, size: number, kind: string, place?: Place, label: string, title: string,
 *   shares: {share: Share, part: number}[]}} Segment
 */

export const WORDS = /** @type {Record<string, string>} */ ({
  ready: "in use",
  making: "being created",
  ending: "ending",
  quarantined: "quarantined",
  foreign: "foreign",
  free: "free",
  unusable: "unavailable",
});

/**
 * The stretches of a bar from left to right, free ones included. What overlaps (a place that was made and is ordered
 * again) is drawn once.
 * @param {Gpu} gpu
 * @returns {Segment[]}
 */
export function segments(gpu) {
  /** @type {Segment[]} */
  const found = [];
  let at = 0;
  for (const place of [...(gpu.places ?? [])].sort((one, other) => one.start - other.start)) {
    const end = Math.min(gpu.units, place.start + place.size);
    if (place.start < at || end <= place.start) continue;
    if (place.start > at) found.push(free(at, place.start - at));
    found.push(taken(gpu, place, end - place.start));
    at = end;
  }
  if (at < gpu.units) found.push(free(at, gpu.units - at));
  return found;
}

/** @param {number} start @param {number} size @returns {Segment} */
function free(start, size) {
  return { start, size, kind: "free", label: "", title: `free: ${units(size)} at ${start}`, shares: [] };
}

/** @param {number} size */
function units(size) {
  return `${size} memory unit${size === 1 ? "" : "s"}`;
}

/** @param {Gpu} gpu @param {Place} place @param {number} size @returns {Segment} */
function taken(gpu, place, size) {
  const shares = place.shares ?? [];
  const memory = (gpu.memory_mib * size) / gpu.units;
  const asked = shares.reduce((sum, share) => sum + share.memory_mib, 0);
  return {
    start: place.start,
    size,
    kind: kindOf(place),
    place,
    label: labelOf(place),
    title: titleOf(place),
    shares: shares.map((share) => ({ share, part: share.memory_mib / Math.max(memory, asked, 1) })),
  };
}

/** @param {Place} place */
export function kindOf(place) {
  if (place.state === "free") return "offered";
  if (place.out_of_use || place.ill) return "quarantined";
  return (place.shares ?? []).length > 0 ? "shared" : place.state;
}

/** @param {Place} place */
function labelOf(place) {
  const mark = place.out_of_use || place.ill ? "! " : place.state === "making" ? "… " : place.state === "ending" ? "× " : "";
  const name = nameOf(place.owner ?? "");
  return mark + (name || (place.state === "ready" ? place.profile ?? "" : WORDS[place.state] ?? place.state));
}

/** @param {string} owner `namespace/name` */
export function nameOf(owner) {
  return owner.slice(owner.indexOf("/") + 1);
}

/** @param {Place} place */
export function titleOf(place) {
  const shares = (place.shares ?? []).map((share) => `${share.owner} (${share.memory_mib} MiB)`);
  const whose = place.owner || shares.join(", ");
  const where = `${place.profile || units(place.size)} at ${place.start}`;
  const state = place.out_of_use ? `${WORDS[place.state] ?? place.state}, not used for new slices` : WORDS[place.state];
  return [whose, where, state ?? place.state, place.message, place.daemon].filter(Boolean).join(" · ");
}

export const HUES = 8;
/** @type {Map<string, number>} */
const hues = new Map();
let present = "";

/**
 * Give the teams that are there their colours; others, such as teams of last week, get what is left when they are drawn.
 * @param {string[]} teams
 * @returns {boolean} whether these are other teams than before: then what has a colour is to be drawn again
 */
export function colour(teams) {
  const names = [...teams].sort();
  const before = present;
  present = names.join(" ");
  if (present === before) return false;
  hues.clear();
  names.forEach(assignHue);
  return true;
}

/**
 * The colour of a team: its own while there are no more teams than colours, as near as may be to the one that its name
 * wants. Beyond eight, two may share one; names tell them apart.
 * @param {string} owner `namespace/name`, or a namespace
 * @returns {number} 0 to 7
 */
export function assignHue(owner) {
  const team = teamOf(owner);
  let hue = hues.get(team) ?? wanted(team);
  if (hues.has(team)) return hue;
  const taken = new Set(hues.values());
  while (taken.size < HUES && taken.has(hue)) hue = (hue + 1) % HUES;
  hues.set(team, hue);
  return hue;
}

/** @param {string} owner `namespace/name`, or a namespace */
export function teamOf(owner) {
  const slash = owner.indexOf("/");
  return slash < 0 ? owner : owner.slice(0, slash);
}

/** @param {string} team */
function wanted(team) {
  let hash = 2166136261; // FNV-1a, 32 bits
  for (let at = 0; at < team.length; at += 1) {
    hash = Math.imul(hash ^ team.charCodeAt(at), 16777619) >>> 0;
  }
  return ((hash ^ (hash >>> 15)) >>> 0) % HUES;
}

/**
 * What a GPU is called: what is seen of it, so that one who speaks to the page can say that, and what of the rest matters.
 * @param {Gpu} gpu @param {string} seen its text on the map, from the index on
 */
export function named(gpu, seen) {
  const text = `GPU ${seen}`.replace(/\s+/g, " ").trim();
  const more = [`${percent(gpu.in_use ?? 0)} in use`, gpu.trouble, gpu.cordoned && `cordoned: ${gpu.cordoned}`, fitsText(gpu)];
  const unseen = more.filter((each) => each && !text.includes(each.replace(/ in use$/, "")));
  return [`${text}, on ${gpu.node}, ${shortModel(gpu.model)}`, ...unseen].join(". ");
}

/**
 * What is on a GPU, for screen readers.
 * @param {Gpu} gpu
 * @param {Map<string, number>} idle seconds by request
 */
export function described(gpu, idle) {
  const places = [...(gpu.places ?? [])].sort((one, other) => one.start - other.start);
  return places.map((place) => titleOf(place) + (idle.has(place.request ?? "") ? " · idle" : "")).join("; ") || "nothing is on it";
}

/** How many more instances fit on a GPU, by profile. @param {Gpu} gpu */
function fitting(gpu) {
  return Object.entries(gpu.fits ?? {}).filter(([, count]) => count > 0);
}

/** Whether another pod fits: memory that no instance can use is no room. @param {Gpu} gpu */
export function hasRoom(gpu) {
  return gpu.mig ? fitting(gpu).length > 0 : (gpu.in_use ?? 0) < 1;
}

/** @param {Gpu} gpu */
export function fitsText(gpu) {
  if (!gpu.mig) return "";
  const counts = fitting(gpu);
  if (counts.length === 0) return "nothing more fits";
  return `fits ${counts.map(([profile, count]) => `${count}×${profile}`).join(" or ")}`;
}

/** @param {number} number @param {string} what */
export function count(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

/** @param {number} fraction */
export function percent(fraction) {
  return `${Math.round(fraction * 100)} %`;
}

/** @param {string} model */
export function shortModel(model) {
  return model.replace(/^NVIDIA /, "");
}

/** @param {number} mib 0 if the driver does not report it */
export function memory(mib) {
  if (mib === 0) return "unknown";
  if (mib >= 1024 * 1024) return `${(mib / 1024 / 1024).toFixed(1)} TiB`;
  return mib >= 1024 ? `${Math.round(mib / 1024)} GiB` : `${mib} MiB`;
}
