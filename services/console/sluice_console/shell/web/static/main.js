/**
 * Puts the page together: events from the server into the store, from there into the views, once a frame.
 * @module
 */
import { chosen, keep } from "./address.js";
import { colour } from "./bars.js";
import { DetailView } from "./detail_view.js";
import { ask, at, keepClicks, make } from "./dom.js";
import { showStanding, showTotals } from "./head_view.js";
import { LeadView } from "./lead_view.js";
import { MapView } from "./map_view.js";
import { QueueView } from "./queue_view.js";
import { Store } from "./store.js";
import { Stream } from "./stream.js";
import { themes } from "./theme.js";
import { TimeView } from "./time_view.js";

const store = new Store();
/** For measurements and for the curious: nothing of the page reads it. */
/** @type {any} */ (window).sluice = store;
const server = { isThere: true, since: new Date() };
const map = new MapView(store, (key, request) => choose(request ? `request/${request}` : key));
const queue = new QueueView();
const lead = new LeadView(store, { filter: toggleWord, idle: (idle) => map.mend(idle) });
const time = new TimeView();
/** @type {import("./filter.js").Term[]} */
let terms = [];
const TABS = ["waiting", "idle", "teams", "ended", "nodes"];
const detail = new DetailView({ choose, close: () => choose("") });
/** The keys that have changed since the last frame. @type {Set<string>} */
const waiting = new Set();
let isDue = false;
let begun = false;
let shownUnlisted = -1;
let leadTimer = 0;
const LEAD_MS = 250;
/** Between a letter and the filter: fast typing is one question. */
const TYPING_MS = 60;
let typing = 0;
let filtered = 0;

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
  if (keys.some((key) => key.startsWith("team/")) && colour(store.teams().map((row) => row.team))) {
    map.redraw();
    time.redraw();
    lead.draw();
  }
  map.changed(keys);
  if (keys.includes("fleet")) showTotals(store.get("fleet") ?? {});
  const unlisted = store.get("fleet")?.unlisted ?? 0;
  if (unlisted !== shownUnlisted || keys.some((key) => key.startsWith("request/"))) drawQueue();
  if (keys.some((key) => /^(team|node|gpu)\//.test(key))) drawLead();
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
  const requests = store.requests();
  const unlisted = store.get("fleet")?.unlisted ?? 0;
  queue.show(requests, terms, unlisted);
  const waiting = requests.filter((row) => row.state === "waiting" || row.state === "requested").length + unlisted;
  at("tab-waiting-count").textContent = waiting ? String(waiting) : "";
}

/** Its lists go over the whole fleet, so they follow a few times a second. */
function drawLead() {
  leadTimer ||= setTimeout(() => {
    leadTimer = 0;
    lead.draw();
  }, LEAD_MS);
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

/** Apply the filter: the server knows its words, as the commands do. */
async function filter() {
  const text = at("filter").value.trim();
  keep({ q: text });
  const asked = ++filtered;
  const found = text ? await ask(`/api/filter?q=${encodeURIComponent(text)}`) : { terms: [] };
  if (asked !== filtered) return;
  at("filter").setAttribute("aria-invalid", String(Boolean(found.error)));
  at("filter-note").textContent = found.error ?? "";
  if (found.error) return;
  terms = found.terms;
  at("show").value = [...at("show").options].map((option) => option.value).find((value) => value && words().includes(value)) ?? "";
  map.show({ terms });
  time.filter(terms);
  drawQueue();
  lead.show(tab(), terms);
}

function words() {
  return at("filter").value.split(/\s+/).filter(Boolean);
}

/** @param {string[]} to */
function setWords(to) {
  at("filter").value = to.join(" ");
  void filter();
}

/** Put a word into the filter in place of others of its key, or take it out again. @param {string} word */
function toggleWord(word) {
  const key = word.slice(0, word.indexOf(":") + 1);
  const others = words().filter((each) => !each.startsWith(key));
  setWords(words().includes(word) ? others : [...others, word]);
  if (/^(team|node|fits|is):/.test(word)) view("");
}

function tab() {
  const name = chosen("tab");
  return TABS.includes(name) ? name : TABS[0];
}

function showTab() {
  const now = tab();
  for (const name of TABS) {
    at(`tab-${name}`).setAttribute("aria-selected", String(name === now));
    at(`tab-${name}`).tabIndex = name === now ? 0 : -1;
    at(`panel-${name}`).hidden = name !== now;
  }
  lead.show(now, terms);
}

/** @param {string} name `time`, or nothing for the map */
function view(name) {
  keep({ view: name });
  showView();
}

function showView() {
  const isTime = chosen("view") === "time";
  at("view-map").setAttribute("aria-pressed", String(!isTime));
  at("view-time").setAttribute("aria-pressed", String(isTime));
  for (const id of ["map", "legend", "map-tools"]) at(id).hidden = isTime;
  at("time").hidden = !isTime;
  at("skip").href = isTime ? "#time" : "#map";
  at("skip").textContent = isTime ? "To the charts" : "To the map";
  time.show(isTime);
}

/** What may follow in the filter. */
function suggest() {
  const typed = words();
  const before = typed.slice(0, at("filter").value.endsWith(" ") ? typed.length : -1).join(" ");
  const known = [...store.teams().map((row) => `team:${row.team}`), ...[...at("show").options].map((option) => option.value).filter(Boolean)];
  at("known").replaceChildren(...known.slice(0, 50).map((word) => make("option", { value: [before, word].filter(Boolean).join(" ") })));
}

/** @param {string} key `request/ID`, `gpu/NODE/UUID`, or nothing: it is in the address, so that it can be passed on */
function choose(key) {
  const hash = key === "" ? "" : `#${key.split("/").map(encodeURIComponent).join("/")}`;
  if (hash === location.hash) return;
  if (hash === "") history.pushState(null, "", location.pathname + location.search);
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
  none.textContent = nodes > 0 ? (words().includes("is:waiting") ? "Waiting pods have no slice; they are listed under Waiting." : "No GPU matches the filter.")
    : store.complete ? "No GPU is known yet. A node appears within seconds of its agent's start."
      : "Loading the fleet ...";
}

map.onArranged = nothing;
at("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => { void filter(); suggest(); }, TYPING_MS);
});
at("filter").addEventListener("focus", suggest);
at("show").addEventListener("input", () => {
  const shown = new Set([...at("show").options].map((option) => option.value));
  setWords([...words().filter((word) => !shown.has(word)), at("show").value].filter(Boolean));
});
for (const [id, name] of [["group", "by"], ["density", "size"]]) {
  at(id).value = chosen(name);
  if (at(id).selectedIndex < 0) at(id).selectedIndex = 0;
  at(id).addEventListener("input", () => {
    keep({ [name]: at(id).value });
    map.show({ [name]: at(id).value });
  });
}
at("tabs").addEventListener("click", (/** @type {any} */ event) => {
  const name = event.target.closest("button")?.dataset.tab;
  if (!name) return;
  keep({ tab: name === TABS[0] ? "" : name });
  showTab();
});
at("tabs").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (by === undefined) return;
  const next = at(`tab-${TABS[(TABS.indexOf(tab()) + by + TABS.length) % TABS.length]}`);
  next.click();
  next.focus();
});
at("view-map").addEventListener("click", () => view(""));
at("view-time").addEventListener("click", () => view("time"));
at("side").addEventListener("click", (/** @type {any} */ event) => {
  const request = event.target.closest("[data-request]")?.dataset.request;
  if (request) choose(`request/${request}`);
});
at("tools").addEventListener("submit", (/** @type {SubmitEvent} */ event) => event.preventDefault());
at("map").addEventListener("focus", () => map.enter());
addEventListener("hashchange", showChosen);
addEventListener("popstate", showChosen);
document.addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "/" && !isTyping) {
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
keepClicks();
themes(at("theme"));
showStanding(server, undefined);
nothing(0, 0);
at("filter").value = chosen("q").slice(0, 200);
map.show({ by: at("group").value, size: at("density").value });
stream.open();
void filter();
showTab();
showView();
showChosen();
setInterval(() => { if (!document.hidden) queue.draw(); }, 30_000);
void lead.watchIdle();
