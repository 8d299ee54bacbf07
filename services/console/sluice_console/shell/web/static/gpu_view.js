/**
 * One GPU on the map, as elements.
 * @module
 * @import {Gpu} from "./store.js"
 */
import { assignHue, described, fitsText, named, nameOf, percent, segments, shortModel, titleOf } from "./bars.js";
import { make } from "./dom.js";
import { lasting } from "./use_view.js";

/** Pixels of a letter, and how many letters of a name say something: it is shortened to those at least, or left out. */
const LETTER = /** @type {Record<string, number>} */ ({ l: 6.9, m: 6.3, s: 5.7 });
const LETTERS = /** @type {Record<string, number>} */ ({ l: 6, m: 6, s: Infinity });
/** And what a name and the time of idling need beside each other. */
const IDLE_MIN = 130;

/**
 * @param {string} key
 * @param {Gpu} gpu
 * @param {{chosen: string, size: string, tile: number, idle: Map<string, number>}} how `chosen` is the request whose
 *   places are marked; `tile` is the width in pixels; `idle` has seconds by request
 * @returns {HTMLElement}
 */
export function gpuElement(key, gpu, how) {
  const ill = gpu.trouble ? gpu.trouble.split(":")[0] : gpu.cordoned ? "cordoned" : "";
  const state = `${gpu.trouble ? " ill" : ""}${gpu.cordoned ? " cordoned" : ""}`;
  // What is not seen is left out: there are thousands of the smallest ones, and the name has what is seen, with its spaces.
  const caption = how.size !== "s" && make("div", { class: "cap" },
    make("span", { class: "index" }, `${gpu.index}`), " ",
    make("span", { class: "used" }, percent(gpu.in_use ?? 0)), " ",
    ill && make("span", { class: gpu.trouble ? "mark" : "mark mild" }, ill), " ",
    how.size === "l" && make("span", { class: "fits" }, fitsText(gpu) || (gpu.mig ? "" : "MIG is off")), " ");
  const bar = make("div", { class: "bar" });
  bar.style.setProperty("--units", String(gpu.units));
  for (const segment of segments(gpu)) {
    bar.append(segmentElement(gpu, segment, how, (how.tile * segment.size) / gpu.units), " ");
  }
  const title = [`GPU ${gpu.index} · ${shortModel(gpu.model)}`, gpu.trouble, gpu.cordoned && `cordoned: ${gpu.cordoned}`];
  return make("div", {
    class: `gpu${state}`,
    role: "button",
    tabindex: -1,
    title: title.filter(Boolean).join(" · "),
    "data-key": key,
    "data-uuid": gpu.uuid,
    "aria-label": named(gpu, `${caption ? caption.textContent : `${gpu.index} `}${bar.textContent}`),
    "aria-description": described(gpu, how.idle),
  }, caption, bar);
}

/**
 * @param {Gpu} gpu
 * @param {import("./bars.js").Segment} segment
 * @param {{chosen: string, size: string, idle: Map<string, number>}} how
 * @param {number} width in pixels
 */
function segmentElement(gpu, segment, how, width) {
  const { chosen, idle } = how;
  const place = segment.place;
  const owner = place?.owner || place?.shares?.[0]?.owner || "";
  const hue = owner && segment.kind !== "quarantined" ? ` hue-${assignHue(owner)}` : "";
  const mark = chosen && place?.request === chosen ? " chosen" : "";
  const since = idle.get(place?.request ?? "");
  const rest = since === undefined ? "" : `idle for ${lasting(since)}`;
  const element = make("div", {
    class: `seg ${segment.kind}${hue}${mark}${rest && " idle"}`, title: [segment.title, rest].filter(Boolean).join(" · "),
  });
  element.style.left = `${(100 * segment.start) / gpu.units}%`;
  element.style.width = `${(100 * segment.size) / gpu.units}%`;
  if (place?.request) element.dataset.request = place.request;
  if (place && segment.shares.length === 0 && segment.kind !== "offered") element.dataset.slot = String(place.start);
  for (const { share, part } of segment.shares) {
    const picked = chosen && share.request === chosen ? " chosen" : "";
    const child = make("div", {
      class: `share ${share.state}${picked}${idle.has(share.request) ? " idle" : ""}`,
      title: `${share.owner} · ${share.memory_mib} MiB${share.sm_percent ? `, ${share.sm_percent} % of the SMs` : ""} of ${titleOf({ ...place, shares: [], owner: "" })}`,
      "data-request": share.request,
      "data-slot": `${place?.start}/${share.request}`,
    }, hasRoom(nameOf(share.owner), width * part, how.size) && make("span", {}, nameOf(share.owner)));
    child.style.width = `${100 * part}%`;
    element.append(child, " ");
  }
  if (segment.label && segment.shares.length === 0 && hasRoom(segment.label, width, how.size)) {
    const isLarge = how.size === "l";
    const more = rest ? (isLarge || width >= IDLE_MIN) && `idle ${lasting(since ?? 0).replace(/ \d+ \w+$/, "")}` : isLarge && place?.owner && place.profile;
    element.append(make("span", {}, segment.label, more && " ", more && make("small", {}, more)));
  }
  return element;
}

/** @param {string} name @param {number} width @param {string} size */
function hasRoom(name, width, size) {
  return width >= 11 + LETTER[size] * Math.min(name.length, LETTERS[size]);
}
