/**
 * The top of the page: sums over the fleet, and whether what is shown is as it is.
 * @module
 */
import { memory, percent } from "./bars.js";
import { at, make } from "./dom.js";

/** @param {any} fleet the row `fleet` */
export function showTotals(fleet) {
  const asked = fleet.requests ?? {};
  const pods = (asked.bound ?? 0) + (asked.making ?? 0) + (asked.ending ?? 0);
  const entries = [
    ["nodes", `${fleet.nodes ?? 0}`, fleet.stale ? `${fleet.stale} stale` : ""],
    ["GPUs", `${fleet.gpus ?? 0}`, fleet.unhealthy ? `${fleet.unhealthy} unhealthy` : ""],
    ["GPU memory in use", ...memoryInUse(fleet)],
    ["pods with a slice", `${pods}`, ""],
    ["waiting", `${(asked.waiting ?? 0) + (asked.requested ?? 0)}`, asked.refused ? `${asked.refused} refused` : ""],
  ];
  if (fleet.quarantined) entries.push(["quarantined places", `${fleet.quarantined}`, ""]);
  if (fleet.foreign) entries.push(["foreign instances", `${fleet.foreign}`, ""]);
  at("totals").replaceChildren(...entries.map(([name, value, note]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value, note && make("small", {}, note)))));
}

/**
 * How much of the fleet's memory is in use, and of how much: of those GPUs whose driver tells it.
 * @param {{gpus?: number, memory_mib?: number, in_use_mib?: number}} fleet
 * @returns {[string, string]}
 */
export function memoryInUse(fleet) {
  if (fleet.memory_mib) return [percent((fleet.in_use_mib ?? 0) / fleet.memory_mib), `of ${memory(fleet.memory_mib)}`];
  return [fleet.gpus ? memory(0) : "none", ""];
}

/**
 * How old what is shown may be. Losing the page's own server comes first: it cannot say anything of the broker then.
 * @param {{isThere: boolean, since: Date}} server
 * @param {any} bus the row `bus`
 */
export function showStanding(server, bus) {
  const [state, text, banner] = standing(server, bus);
  const status = at("status");
  status.className = state;
  status.replaceChildren(make("i", {}), text);
  at("banner").hidden = !banner;
  if (at("banner").textContent !== banner) at("banner").textContent = banner;
  document.body.classList.toggle("old", state === "lost");
}

/**
 * @param {{isThere: boolean, since: Date}} server
 * @param {any} bus
 * @returns {[string, string, string]} the state, a word or two, and the whole sentence where people must know
 */
export function standing(server, bus) {
  if (!server.isThere) {
    const since = clock(server.since);
    return ["lost", "page lost its server", `The server of this page does not answer since ${since}. The page shows the state of that time and tries again by itself.`];
  }
  if (bus === undefined) return ["reading", "loading", ""];
  if (bus.state === "live") return ["live", "live", ""];
  if (bus.state === "lost") {
    return ["lost", "broker lost", `${sentence(bus.message)} since ${clock(new Date(bus.since))}. The page shows the state of that time. Running pods keep their slices.`];
  }
  if (bus.state === "full") return ["lost", "broker can't store", `${sentence(bus.message)} (since ${clock(new Date(bus.since))}). Running pods keep their slices.`];
  if (bus.state === "connecting") return ["reading", "waiting for the broker", `No broker answers since ${clock(new Date(bus.since))}; the page shows the fleet as soon as one does.`];
  return ["reading", "reading", ""];
}

/** @param {string} text */
function sentence(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "The broker is lost";
}

/**
 * A time as this person's clock shows it, with its day where that is not today.
 * @param {Date} when
 * @param {Date} [now]
 */
export function clock(when, now = new Date()) {
  if (Number.isNaN(when.getTime())) return "a while ago";
  const time = when.toLocaleTimeString("en-GB");
  const isToday = when.toDateString() === now.toDateString();
  return isToday ? time : `${when.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" })}, ${time}`;
}
