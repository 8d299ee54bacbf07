/**
 * Puts the page together: events from the server into the store, from there into the views, once a frame.
 * @module
 */
import { DetailView } from "./detail_view.js";
import { at } from "./dom.js";
import { words } from "./filter.js";
import { showStanding, showTotals } from "./head_view.js";
import { MapView } from "./map_view.js";
import { QueueView } from "./queue_view.js";
import { Store } from "./store.js";
import { Stream } from "./stream.js";
import { themes } from "./theme.js";

const store = new Store();
/** For measurements and for the curious: nothing of the page reads it. */
/** @type {any} */ (window).sluice = store;
const server = { isThere: true, since: new Date() };
const map = new MapView(store, (key, request) => choose(request ? `request/${request}` : key));
const queue = new QueueView((request) => choose(`request/${request}`));
const detail = new DetailView({ choose, close: () => choose("") });
/** The keys that have changed since the last frame. @type {Set<string>} */
const waiting = new Set();
let isDue = false;
let begun = false;
let shownUnlisted = -1;

// -- from the server ---------------------------------------------------------------------------------------------

/** @param {string[]} keys */
function changed(keys) {
  for (const key of keys) waiting.add(key);
  // Of the first picture the first part shows at once, and the rest when it has come whole: each frame costs some.
  const wanted = waiting.size > 0 && (store.complete || !begun);
  if (!wanted || isDue) return;
  isDue = true;
  // A page in the background gets no frames, so changes are applied without one.
  if (document.hidden) setTimeout(draw, 250);
  else requestAnimationFrame(draw);
}

function draw() {
  isDue = false;
  begun = true;
  const keys = [...waiting];
  waiting.clear();
  map.changed(keys);
  if (keys.includes("fleet")) showTotals(store.get("fleet") ?? {});
  const unlisted = store.get("fleet")?.unlisted ?? 0;
  if (unlisted !== shownUnlisted || keys.some((key) => key.startsWith("request/"))) drawQueue();
  shownUnlisted = unlisted;
  if (keys.includes("bus")) showStanding(server, store.get("bus"));
  detail.changed(keys, keys.some((key) => key.startsWith("gpu/") && concerns(key)));
}

/** Whether a GPU's row says something of the request that is shown. @param {string} key */
function concerns(key) {
  if (!detail.key.startsWith("request/")) return false;
  const request = detail.key.slice("request/".length);
  return (store.get(key)?.places ?? []).some((/** @type {any} */ place) =>
    place.request === request || (place.shares ?? []).some((/** @type {any} */ share) => share.request === request));
}

function drawQueue() {
  queue.show(store.requests(), words(query()), store.get("fleet")?.unlisted ?? 0);
}

const stream = new Stream("/api/stream", {
  picture: (event) => changed(store.picture(event)),
  change: (event) => {
    const keys = store.change(event);
    if (keys !== null) changed(keys);
    return keys !== null;
  },
  standing: (isThere) => {
    if (isThere !== server.isThere) server.since = new Date();
    server.isThere = isThere;
    showStanding(server, store.get("bus"));
    nothing(0, 0);
  },
});

// -- from the person ---------------------------------------------------------------------------------------------

function query() {
  return [at("filter").value, at("show").value].join(" ");
}

/** @param {string} key `request/ID`, `gpu/NODE/UUID`, or nothing: it is in the address, so that it can be passed on */
function choose(key) {
  const hash = key === "" ? "" : `#${key.split("/").map(encodeURIComponent).join("/")}`;
  if (hash === location.hash) return;
  if (hash === "") history.pushState(null, "", location.pathname);
  else location.hash = hash;
  showChosen();
}

function showChosen() {
  let key = "";
  try {
    key = location.hash.slice(1).split("/").map(decodeURIComponent).join("/");
  } catch {
    // An unreadable address is none of ours.
  }
  if (!/^(request|gpu)\/./.test(key)) key = "";
  if (key === detail.key) return;
  map.mark(key.startsWith("request/") ? key.slice("request/".length) : "");
  void detail.show(key);
}

/** @param {number} shown @param {number} all */
function nothing(shown, all) {
  const nodes = all || store.gpusOf.size;
  const none = at("nothing");
  none.hidden = nodes > 0 && (all === 0 || shown > 0);
  none.textContent = nodes > 0 ? "No GPU matches the filter."
    : store.complete ? "No GPU is known yet. A node appears within seconds of its agent's start."
      : "Loading the fleet ...";
}

map.onArranged = nothing;
for (const id of ["filter", "show"]) {
  at(id).addEventListener("input", () => {
    map.show({ query: query() });
    drawQueue();
  });
}
at("group").addEventListener("input", () => map.show({ by: at("group").value }));
at("density").addEventListener("input", () => map.show({ size: at("density").value }));
at("tools").addEventListener("submit", (/** @type {SubmitEvent} */ event) => event.preventDefault());
at("map").addEventListener("focus", () => map.enter());
addEventListener("hashchange", showChosen);
addEventListener("popstate", showChosen);
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "/" && !typing) {
    at("filter").focus();
    event.preventDefault();
  } else if (event.key === "Escape") {
    if (document.activeElement === at("filter") && at("filter").value) {
      at("filter").value = "";
      at("filter").dispatchEvent(new Event("input"));
    } else if (detail.key) {
      choose("");
      map.enter();
    }
  }
});
themes(at("theme"));
showStanding(server, undefined);
nothing(0, 0);
stream.open();
showChosen();
