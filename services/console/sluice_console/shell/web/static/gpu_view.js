/**
 * One GPU on the map, as elements.
 * @module
 * @import {Gpu} from "./store.js"
 */
import { fitsText, hueOf, nameOf, percent, segments, shortModel, spoken, titleOf } from "./bars.js";
import { make } from "./dom.js";
import { lasting } from "./use_view.js";

/** Pixels that a name needs to be more than a letter. */
const LABEL_MIN = 26;
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
  // There are thousands of the smallest ones, so invisible parts are left out. `aria-label` has everything.
  const caption = how.size !== "s" && make("div", { class: "cap" },
    make("span", { class: "index" }, `${gpu.index}`),
    make("span", { class: "used" }, percent(gpu.in_use ?? 0)),
    ill && make("span", { class: gpu.trouble ? "mark" : "mark mild" }, ill),
    make("span", { class: "fits" }, fitsText(gpu) || (gpu.mig ? "" : "MIG is off")));
  const bar = make("div", { class: "bar" });
  bar.style.setProperty("--units", String(gpu.units));
  for (const segment of segments(gpu)) {
    bar.append(segmentElement(gpu, segment, how, (how.tile * segment.size) / gpu.units));
  }
  const title = [`GPU ${gpu.index} · ${shortModel(gpu.model)}`, gpu.trouble, gpu.cordoned && `cordoned: ${gpu.cordoned}`];
  const tile = make("div", {
    class: `gpu${state}`,
    role: "button",
    tabindex: -1,
    title: title.filter(Boolean).join(" · "),
    "data-key": key,
    "data-uuid": gpu.uuid,
    "aria-label": spoken(gpu, how.idle),
  }, caption, bar);
  return tile;
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
  const hue = owner && segment.kind !== "quarantined" ? ` hue-${hueOf(owner)}` : "";
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
    }, width * part >= LABEL_MIN && make("span", {}, nameOf(share.owner)));
    child.style.width = `${100 * part}%`;
    element.append(child);
  }
  if (width >= LABEL_MIN && segment.label && segment.shares.length === 0) {
    const isWide = how.size === "l" || width >= IDLE_MIN;
    const profile = rest ? isWide && `idle ${lasting(since ?? 0).replace(/ \d+ \w+$/, "")}` : place?.owner && place.profile;
    element.append(make("span", {}, segment.label, profile && make("small", {}, profile)));
  }
  return element;
}
