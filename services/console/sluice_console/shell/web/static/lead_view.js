/**
 * What a team lead asks besides the queue: what fits, teams beside quota, idle slices, ended pods, nodes to drain.
 * @module
 * @import {Amounts, Gpu, NodeRow, Store, TeamRow} from "./store.js"
 * @import {Term} from "./filter.js"
 */
import { assignHue, count, memory, percent, shortModel } from "./bars.js";
import { ask, at, make } from "./dom.js";
import { isUsable, match, picksRequest } from "./filter.js";
import { clock } from "./head_view.js";
import { age } from "./queue_view.js";
import { lasting } from "./use_view.js";

const ROWS_MAX = 300;
const LEGEND_MAX = 8;
const IDLE_AGAIN_MS = 60_000;

/**
 * How many more instances of each profile fit now, the largest first; each count is without the others.
 * @param {Store} store
 * @returns {[string, number][]}
 */
export function fitsNow(store) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const name of store.nodes()) {
    const node = store.get(`node/${name}`);
    for (const gpu of store.gpus(name)) {
      for (const place of gpu.places ?? []) if (size(place.profile ?? "")[0]) add(counts, place.profile ?? "", 0);
      if (node === undefined || !isUsable(node, gpu)) continue;
      for (const [profile, number] of Object.entries(gpu.fits ?? {})) add(counts, profile, number);
      if (!gpu.mig && (gpu.in_use ?? 0) === 0) add(counts, "whole GPU", 1);
    }
  }
  return [...counts].filter(([profile]) => !profile.includes("+"))
    .sort(([one], [other]) => size(other)[0] - size(one)[0] || size(other)[1] - size(one)[1] || one.localeCompare(other));
}

/** @param {Map<string, number>} counts @param {string} profile @param {number} number */
function add(counts, profile, number) {
  counts.set(profile, (counts.get(profile) ?? 0) + number);
}

/** Memory, then compute slices. @param {string} profile such as `3g.40gb` @returns {[number, number]} */
function size(profile) {
  const found = /^(\d+)g\.(\d+)gb/.exec(profile);
  return found ? [Number(found[2]), Number(found[1])] : [profile === "whole GPU" ? 1e6 : 0, 0];
}

/**
 * Nodes that may be drained, those where fewest pods would start again first.
 * @param {Store} store @param {Map<string, number>} idle
 */
export function byDrain(store, idle) {
  return store.nodes().map((name) => {
    const gpus = store.gpus(name);
    const requests = new Set(gpus.flatMap((gpu) => (gpu.places ?? []).flatMap((place) =>
      [place.request, ...(place.shares ?? []).map((share) => share.request)].filter(Boolean))));
    /** @type {NodeRow} */
    const node = store.get(`node/${name}`);
    return { node, used: 1 - (node.free ?? 0), idle: [...requests].filter((each) => idle.has(each ?? "")).length };
  }).filter(({ node }) => node.gpus)
    .sort((one, other) => (one.node.pods ?? 0) - (other.node.pods ?? 0) || one.used - other.used ||
      one.node.node.localeCompare(other.node.node, "en", { numeric: true }));
}

export class LeadView {
  /**
   * @param {Store} store
   * @param {{filter: (word: string) => void, idle: (idle: Map<string, number>) => void}} to
   */
  constructor(store, to) {
    this._store = store;
    this._to = to;
    /** Seconds by request. @type {Map<string, number>} */
    this.idle = new Map();
    /** @type {any[]} */
    this._idleSlices = [];
    /** @type {any} */
    this._ended = null;
    /** @type {Term[]} */
    this._terms = [];
    this._tab = "";
    this._idleNote = "Measuring ...";
    at("hours").addEventListener("input", () => this._askEnded());
    for (const id of ["fits", "teams", "nodes", "team-legend"]) {
      at(id).addEventListener("click", (/** @type {any} */ event) => {
        const word = event.target.closest("[data-word]")?.dataset.word;
        if (word) to.filter(word);
      });
    }
  }

  /** Ask agents what is idle, once a minute while the page is seen. */
  async watchIdle() {
    if (!document.hidden) {
      const found = await ask("/api/idle");
      this._idleSlices = found.slices ?? [];
      const silent = Object.keys(found.silent ?? {});
      this._idleNote = found.error ?? (silent.length ? `${count(silent.length, "node")} did not answer: ${silent.slice(0, 3).join(", ")}.` : "");
      const before = JSON.stringify([...this.idle.keys()]);
      this.idle = new Map(this._idleSlices.map((each) => [each.request, each.idle_s]));
      if (JSON.stringify([...this.idle.keys()]) !== before) this._to.idle(this.idle);
      this.draw();
    }
    setTimeout(() => this.watchIdle(), IDLE_AGAIN_MS);
  }

  /** @param {string} tab @param {Term[]} terms */
  show(tab, terms) {
    const opens = tab !== this._tab;
    this._tab = tab;
    this._terms = terms;
    if (opens && tab === "ended") void this._askEnded();
    this.draw();
  }

  draw() {
    this._drawFits();
    this._drawLegend();
    at("tab-idle-count").textContent = this._idleSlices.length ? String(this._idleSlices.length) : "";
    if (this._tab === "idle") this._drawIdle();
    if (this._tab === "teams") this._drawTeams();
    if (this._tab === "ended") this._drawEnded();
    if (this._tab === "nodes") this._drawNodes();
  }

  _drawFits() {
    const chosen = this._terms.filter((term) => term.key === "fits").map((term) => term.value);
    replace("fits", ...fitsNow(this._store).map(([profile, number]) => {
      const word = profile === "whole GPU" ? "is:empty" : `fits:${profile}`;
      const text = [make("b", {}, String(number)), ` × ${profile}`];
      return make("li", {}, make("button", {
        type: "button", "data-word": word, class: number ? "" : "none", disabled: number === 0,
        "aria-pressed": String(chosen.includes(profile.toLowerCase())),
        title: number ? `show where ${profile} fits` : `no GPU has room for ${profile} now`,
      }, ...text));
    }));
  }

  _drawLegend() {
    const teams = [...this._store.teams()].filter((row) => row.pods)
      .sort((one, other) => (other.used.memory_mib ?? 0) - (one.used.memory_mib ?? 0));
    const shown = teams.slice(0, LEGEND_MAX).map((row) => make("li", {}, make("button", {
      type: "button", "data-word": `team:${row.team}`, title: `show only the slices of ${row.team}`,
    }, swatch(row.team), row.team)));
    const more = teams.length - shown.length;
    replace("team-legend", ...shown, more > 0 && make("li", {}, `and ${more} more`));
  }

  _drawIdle() {
    const found = this._idleSlices.filter((each) => this._means(each.owner, `${each.node} ${each.profile ?? ""}`));
    replace("idle", ...found.slice(0, ROWS_MAX).map((each) => make("li", {},
      make("button", { type: "button", "data-request": each.request },
        make("span", { class: "line" }, swatch(each.owner), make("b", {}, each.owner),
          make("time", { title: "since its last kernel ran" }, `idle ${lasting(each.idle_s)}`)),
        make("span", { class: "asks" }, `${each.profile ?? "whole GPU"} on ${each.node}, holds ${memory(each.memory_mib)}, since ${clock(new Date(Date.now() - 1000 * each.idle_s)).slice(0, -3)}`)))));
    at("idle-note").textContent = [this._idleSlices.length === 0 && !this._idleNote ? "No slice has been idle for an hour."
      : found.length === 0 && this._idleSlices.length ? "No idle slice matches the filter." : "", this._idleNote].filter(Boolean).join(" ");
  }

  _drawTeams() {
    const rows = this._store.teams().filter((row) => this._means(`${row.team}/`, ""));
    const idle = new Map();
    for (const each of this._idleSlices) add(idle, each.owner.split("/")[0], 1);
    replace("teams", ...rows.slice(0, ROWS_MAX).map((row) => make("li", {},
      make("div", { class: "line" }, swatch(row.team),
        make("button", { type: "button", class: "link", "data-word": `team:${row.team}`, title: "show its slices on the map" }, make("b", {}, row.team)),
        make("span", { class: "asks" }, [count(row.pods ?? 0, "pod"), row.waiting && `${row.waiting} waiting`,
          idle.get(row.team) && `${idle.get(row.team)} idle`, !row.quota && "no quota"].filter(Boolean).join(", "))),
      ...quotas(row))));
    at("teams-note").textContent = rows.length === 0 ? "No team has a pod or a quota." : "";
  }

  async _askEnded() {
    at("ended-note").textContent = "Reading the history ...";
    this._ended = await ask(`/api/ended?hours=${at("hours").value}`);
    this._drawEnded();
  }

  _drawEnded() {
    if (this._ended === null) return;
    const all = this._ended.pods ?? [];
    const found = all.filter((/** @type {any} */ each) => this._means(`${each.namespace}/${each.name}`, `${each.node} ${each.what} ${each.cause}`));
    replace("ended", ...found.slice(0, ROWS_MAX).map((/** @type {any} */ each) => make("li", {},
      make("button", { type: "button", "data-request": each.request },
        make("span", { class: "line" }, swatch(each.namespace),
          make("b", {}, make("span", { class: "ns" }, `${each.namespace}/`), each.name),
          make("time", { datetime: each.ended, title: each.ended }, clock(new Date(each.ended)))),
        make("span", { class: "asks" }, [`${each.what} on ${each.node}`, each.began && `for ${age(each.began, new Date(each.ended).getTime())}`].filter(Boolean).join(", ")),
        make("p", {}, each.cause)))));
    at("ended-note").textContent = this._ended.error ?? (found.length === 0 ? "No pod with a slice has ended in that time."
      : this._ended.cut || found.length > ROWS_MAX ? "Earlier ones are left out; `sluice explain POD` finds them." : "");
  }

  _drawNodes() {
    const rows = byDrain(this._store, this.idle).filter(({ node }) =>
      match(this._terms, node, this._store.gpus(node.node), this.idle).shown);
    replace("nodes", ...rows.slice(0, ROWS_MAX).map(({ node, used, idle }) => make("li", {},
      make("div", { class: "line" },
        make("button", { type: "button", class: "link", "data-word": `node:${node.node}`, title: "show it on the map" }, make("b", {}, node.node)),
        node.state !== "open" && make("span", { class: "tag" }, node.state),
        make("span", { class: "end" }, node.pods ? `restarts ${count(node.pods, "pod")}` : "nothing to move")),
      bar(used, `${percent(used)} of its GPU memory granted`),
      make("span", { class: "asks" }, [Object.entries(node.models ?? {}).map(([model, number]) => `${number} × ${shortModel(model)}`).join(", "),
        `${percent(used)} granted`, idle && `${idle} of its pods idle`, node.why, ...(node.warnings ?? [])].filter(Boolean).join(" · ")))));
    at("nodes-note").textContent = rows.length === 0 ? "No node matches the filter." : "";
  }

  /** Whether the filter means a pod; terms about places do not matter. @param {string} owner @param {string} text */
  _means(owner, text) {
    const [namespace, ...name] = owner.split("/");
    return picksRequest(this._terms.filter((term) => term.key !== "is"),
      { request: "", namespace, name: name.join("/"), state: "", message: text });
  }
}

/** Replace a list's rows, and keep the focus. @param {string} id @param {...(Node | string | false)} rows */
function replace(id, ...rows) {
  const list = at(id);
  const focused = list.contains(document.activeElement) ? /** @type {any} */ (document.activeElement).dataset : undefined;
  list.replaceChildren(...rows.filter((row) => row !== false));
  for (const name of ["word", "request"]) {
    const value = focused?.[name];
    if (value) list.querySelector(`[data-${name}="${CSS.escape(value)}"]`)?.focus();
  }
}

/** The colour of a team. @param {string} owner */
export function swatch(owner) {
  return make("i", { class: `swatch hue-${assignHue(owner)}` });
}

/** @param {number} part 0 to 1 @param {string} title */
function bar(part, title) {
  const fill = make("i", { class: part > 1 ? "over" : "" });
  fill.style.width = `${Math.min(100, 100 * part)}%`;
  return make("div", { class: "meter", title }, fill);
}

/** What a team uses, beside its quota. @param {TeamRow} row */
function quotas(row) {
  /** @type {[keyof Amounts, string, (value: number) => string][]} */
  const kinds = [["gpus", "slices", String], ["memory_mib", "memory", memory], ["compute_slices", "compute slices", (value) => String(Math.round(value * 10) / 10)]];
  return kinds.flatMap(([kind, name, text]) => {
    const used = row.used[kind] ?? 0;
    const limit = row.quota?.[kind];
    const sure = row.guaranteed?.[kind];
    const said = `${kind === "memory_mib" && used === 0 ? "0" : text(used)}${limit === undefined ? "" : ` of ${text(limit)}`} ${name}${sure === undefined ? "" : `, ${text(sure)} guaranteed`}`;
    if (limit === undefined) return kind === "compute_slices" ? [] : [make("span", { class: "asks amount" }, said)];
    return [make("span", { class: "asks amount" }, said), bar(limit ? used / limit : Number(used > 0), said)];
  });
}
