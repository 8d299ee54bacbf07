/**
 * Use over time: what teams were granted, really used and waited for, as drawings and as a table.
 * @module
 * @typedef {{team: string, allocated: number[], used: number[], waiting: number[], gpu_hours: number, used_gpu_hours: number,
 *   idle_gpu_hours: number, waiting_pod_hours: number, bound: number, wait_p50_s: number | null, wait_p95_s: number | null}} Series
 * @typedef {{start: number, end: number, step_s: number, capacity: number[], teams: Series[]}} Chart
 * @typedef {"allocated" | "used" | "waiting"} Kind
 * @import {Term} from "./filter.js"
 */
import { chosen, keep } from "./address.js";
import { assignHue, percent } from "./bars.js";
import { ask, at, draw, make } from "./dom.js";
import { picksTeam } from "./filter.js";
import { swatch } from "./lead_view.js";
import { lasting } from "./use_view.js";

const AGAIN_MS = 60_000;
const HEIGHT = 132;
const LEFT = 44;
const BOTTOM = 20;
/** Narrower, and it was a click. */
const BRUSH_MIN = 6;
/** @type {Record<Kind, {title: string, unit: string}>} */
const KINDS = {
  allocated: { title: "Granted", unit: "GPUs" },
  used: { title: "Really used", unit: "GPUs" },
  waiting: { title: "Waiting", unit: "pods" },
};
const OTHERS = "other teams";

/**
 * Round numbers on an axis from 0 to about `most`.
 * @param {number} most
 * @returns {number[]}
 */
export function ticks(most) {
  const rough = Math.max(most, 1e-6) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
  const count = Math.max(1, Math.ceil(most / step - 1e-9));
  return Array.from({ length: count + 1 }, (_, index) => Number((index * step).toPrecision(6)));
}

/**
 * The upper and lower edges of stacked steps, the first series at the bottom.
 * @param {number[][]} series
 * @returns {{low: number[], high: number[]}[]}
 */
export function stacked(series) {
  let low = series[0]?.map(() => 0) ?? [];
  return series.map((values) => {
    const high = values.map((value, index) => value + low[index]);
    const layer = { low, high };
    low = high;
    return layer;
  });
}

/**
 * Moments for an axis: midnights where there are few days, else hours or days in between.
 * @param {number} start unix seconds @param {number} end @param {number} most how many
 * @returns {Date[]}
 */
export function moments(start, end, most) {
  const hours = [1, 2, 3, 6, 12, 24, 48, 72, 168, 336].find((each) => (end - start) / 3600 / each <= most) ?? 720;
  const first = new Date(start * 1000);
  first.setMinutes(0, 0, 0);
  if (hours >= 24) first.setHours(0);
  const found = [];
  for (const when = first; when.getTime() <= end * 1000; when.setHours(when.getHours() + hours)) {
    while (hours < 24 && when.getHours() % hours) when.setHours(when.getHours() + 1);
    if (when.getTime() >= start * 1000) found.push(new Date(when));
  }
  return found;
}

export class TimeView {
  constructor() {
    this._box = at("charts");
    /** @type {Chart | null} */
    this._all = null;
    /** What is shown of it: the teams of the filter. @type {Chart | null} */
    this._chart = null;
    /** @type {Term[]} */
    this._terms = [];
    this._timer = 0;
    this._asked = 0;
    this._open = false;
    /** The step under the pointer or the keys; -1 for none. */
    this._at = -1;
    at("spans").addEventListener("click", (/** @type {any} */ event) => {
      const span = event.target.closest("button")?.dataset.span;
      if (span) this._go({ span: span === "24h" ? "" : span, from: "", until: "" });
    });
    at("window").addEventListener("submit", (/** @type {any} */ event) => {
      event.preventDefault();
      const [from, until] = ["from", "until"].map((id) => Math.floor(new Date(at(id).value).getTime() / 1000));
      if (from < until) this._go({ from: String(from), until: String(until) });
      else at("time-note").textContent = "The window's end must be after its start.";
    });
    new ResizeObserver(() => this.redraw()).observe(this._box);
  }

  /** @param {Term[]} terms */
  filter(terms) {
    this._terms = terms;
    this.redraw();
  }

  /** @param {boolean} open */
  show(open) {
    const opens = open && !this._open;
    this._open = open;
    if (opens) void this._ask();
    if (!open) clearTimeout(this._timer);
  }

  /** @param {Record<string, string>} window */
  _go(window) {
    keep(window);
    this._at = -1;
    void this._ask();
  }

  async _ask() {
    clearTimeout(this._timer);
    const asked = ++this._asked;
    const [from, until, span] = ["from", "until", "span"].map(chosen);
    const isWindow = /^\d{1,10}$/.test(from) && /^\d{1,10}$/.test(until);
    for (const button of at("spans").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(!isWindow && button.dataset.span === (span || "24h")));
    }
    this._box.setAttribute("aria-busy", "true");
    const found = await ask(isWindow ? `/api/report?from=${from}&until=${until}` : `/api/report?since=${encodeURIComponent(span || "24h")}`);
    if (asked !== this._asked) return;
    this._box.removeAttribute("aria-busy");
    this._all = found.error ? null : found;
    at("time-note").textContent = found.error ? `${found.error[0].toUpperCase()}${found.error.slice(1)}.` : "";
    if (!found.error) [at("from").value, at("until").value] = [local(found.start), local(found.end)];
    this.redraw();
    if (!isWindow && this._open) this._timer = setTimeout(() => this._ask(), AGAIN_MS);
  }

  /** In the colours and the width of now; who reads a chart by its keys stays at it. */
  redraw() {
    const chart = this._all && { ...this._all, teams: this._all.teams.filter((each) => picksTeam(this._terms, each.team)) };
    this._chart = chart;
    at("time-data").hidden = chart === null;
    if (chart === null || this._box.clientWidth === 0) return;
    const reader = [...this._box.querySelectorAll(".art")].indexOf(/** @type {Element} */ (document.activeElement));
    this._box.replaceChildren(...Object.keys(KINDS).map((kind) => this._figure(chart, /** @type {Kind} */ (kind))));
    /** @type {HTMLElement[]} */ ([...this._box.querySelectorAll(".art")])[reader]?.focus({ preventScroll: true });
    this._table(chart);
    this._read();
  }

  /** @param {Chart} chart @param {Kind} kind */
  _figure(chart, kind) {
    const width = this._box.clientWidth;
    const right = width - 8;
    const steps = chart.teams[0]?.allocated.length ?? chart.capacity.length;
    const layers = stacked(chart.teams.map((each) => each[kind]));
    const capacity = kind === "waiting" ? [] : chart.capacity;
    const marks = ticks(Math.max(1, ...capacity, ...(layers.at(-1)?.high ?? [])));
    const most = marks[marks.length - 1];
    /** @param {number} index */
    const x = (index) => Math.min(right, LEFT + ((right - LEFT) * index * chart.step_s) / (chart.end - chart.start));
    /** @param {number} value */
    const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - 8) * value) / most;
    /** @param {number[]} values */
    const line = (values) => values.map((value, index) => `${index ? "V" : `M${x(0)} `}${y(value)}H${x(index + 1)}`).join("");
    /** @param {number[]} values from right to left, below the line */
    const back = (values) => [...values].reverse().map((value, index) => `V${y(value)}H${x(steps - index - 1)}`).join("");
    const art = draw("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, "aria-hidden": "true" });
    for (const mark of marks) {
      art.append(draw("line", { class: "grid", x1: LEFT, x2: right, y1: y(mark), y2: y(mark) }),
        draw("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, String(mark)));
    }
    chart.teams.forEach((each, index) => {
      art.append(draw("path", { class: `area ${hue(each.team)}`, d: `${line(layers[index].high)}${back(layers[index].low)}Z` }));
    });
    if (capacity.length) art.append(draw("path", { class: "capacity", d: line(capacity) }));
    if (kind === "used") {
      const granted = stacked(chart.teams.map((each) => each.allocated)).at(-1)?.high ?? [];
      if (granted.length) art.append(draw("path", { class: "granted", d: line(granted) }));
    }
    for (const when of moments(chart.start, chart.end, width / 84)) {
      const left = x((when.getTime() / 1000 - chart.start) / chart.step_s);
      if (left < right - (chart.end - chart.start < 2 * 86400 ? 30 : 64)) art.append(draw("text", { x: left, y: HEIGHT - 5 }, label(when, chart.end - chart.start)));
    }
    art.append(draw("line", { class: "cursor", x1: -9, x2: -9, y1: 8, y2: HEIGHT - BOTTOM }),
      draw("rect", { class: "brush", x: 0, y: 8, width: 0, height: HEIGHT - BOTTOM - 8 }));
    const { title, unit } = KINDS[kind];
    const mean = chart.teams.map((each) => `${each.team || OTHERS} ${round(average(each[kind]))}`).join(", ");
    const holder = make("div", {
      class: "art", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": steps - 1,
      "aria-label": `${title}, ${unit}, on average: ${mean || "nothing"}. The table below has the sums.`,
    });
    holder.append(art);
    this._listen(holder, chart, steps, x);
    return make("figure", { "data-kind": kind }, make("figcaption", {}, make("b", {}, title), ` (${unit})`,
      kind === "allocated" && make("small", {}, "line: all GPUs"), kind === "used" && make("small", {}, "solid line: all GPUs, dashed: granted")), holder);
  }

  /** @param {HTMLElement} holder @param {Chart} chart @param {number} steps @param {(index: number) => number} x */
  _listen(holder, chart, steps, x) {
    let began = -1;
    /** @param {PointerEvent} event */
    const position = (event) => Math.max(LEFT, Math.min(x(steps), event.clientX - holder.getBoundingClientRect().left));
    /** @param {number} left */
    const step = (left) => Math.max(0, Math.min(steps - 1, Math.floor(((left - LEFT) / (x(steps) - LEFT)) * steps)));
    /** @param {number} left @param {number} width */
    const brush = (left, width) => {
      for (const each of this._box.querySelectorAll(".brush")) {
        each.setAttribute("x", String(left));
        each.setAttribute("width", String(width));
      }
    };
    holder.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      began = position(event);
      holder.setPointerCapture(event.pointerId);
    });
    holder.addEventListener("pointermove", (event) => {
      const now = position(event);
      if (began >= 0) brush(Math.min(began, now), Math.abs(now - began));
      this._point(step(now), x);
    });
    holder.addEventListener("pointerup", (event) => {
      const [from, until] = [began, position(event)].sort((one, other) => one - other);
      const isBrush = began >= 0 && until - from >= BRUSH_MIN;
      began = -1;
      brush(0, 0);
      if (!isBrush) return;
      const [first, last] = [step(from), step(until) + 1].map((index) => chart.start + index * chart.step_s);
      this._go({ from: String(first), until: String(Math.min(last, chart.end)) });
    });
    holder.addEventListener("pointercancel", () => { began = -1; brush(0, 0); });
    holder.addEventListener("pointerleave", () => { if (began < 0) this._point(-1, x); });
    holder.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -24, PageDown: 24, Home: -steps, End: steps }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      this._point(Math.max(0, Math.min(steps - 1, (this._at < 0 ? steps - 1 : this._at) + by)), x);
    });
  }

  /** @param {number} index @param {(index: number) => number} x */
  _point(index, x) {
    this._at = index;
    const left = String(index < 0 ? -9 : (x(index) + x(index + 1)) / 2);
    for (const each of this._box.querySelectorAll(".cursor")) {
      each.setAttribute("x1", left);
      each.setAttribute("x2", left);
    }
    this._read();
  }

  /** What was at the moment that is pointed at; of none, how to use it. */
  _read() {
    const chart = this._chart;
    const index = this._at;
    if (chart === null) return;
    const text = chart.teams.length === 0 && this._all?.teams.length ? "No use of these teams is recorded, or they are among the other teams."
      : index < 0 ? "Point at a chart, or use the arrow keys, to read a moment; drag over it for a window." : this._moment(chart, index);
    at("moment").textContent = text;
    for (const art of this._box.querySelectorAll(".art")) {
      art.setAttribute("aria-valuenow", index < 0 ? art.getAttribute("aria-valuemax") : String(index));
      art.setAttribute("aria-valuetext", text);
    }
  }

  /** @param {Chart} chart @param {number} index */
  _moment(chart, index) {
    const when = new Date((chart.start + index * chart.step_s) * 1000);
    const kinds = Object.entries(KINDS).map(([kind, { title }]) => {
      const values = chart.teams.map((each) => [each.team || OTHERS, each[/** @type {Kind} */ (kind)][index] ?? 0])
        .filter(([, value]) => Number(value) > 0).map(([team, value]) => `${team} ${round(Number(value))}`);
      return `${title.toLowerCase()}: ${values.join(", ") || "nothing"}`;
    });
    return `${day(when)} ${time(when)} · ${kinds.join(" · ")}`;
  }

  /** @param {Chart} chart */
  _table(chart) {
    at("team-use").replaceChildren(...chart.teams.map((each) => make("tr", {},
      make("th", { scope: "row" }, each.team ? swatch(each.team) : make("i", { class: "swatch rest" }), each.team || OTHERS),
      ...[round(each.gpu_hours), each.gpu_hours ? percent(each.used_gpu_hours / each.gpu_hours) : "–", round(each.idle_gpu_hours),
        round(each.waiting_pod_hours), String(each.bound), wait(each.wait_p50_s), wait(each.wait_p95_s)]
        .map((text) => make("td", {}, text)))));
    at("recorded").textContent = `${day(new Date(chart.start * 1000))} ${time(new Date(chart.start * 1000))} to ${day(new Date(chart.end * 1000))} ${time(new Date(chart.end * 1000))}`;
  }
}

/** @param {string} team */
function hue(team) {
  return team ? `hue-${assignHue(team)}` : "rest";
}

/** @param {number[]} values */
function average(values) {
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}

/** @param {number} value */
function round(value) {
  return value >= 100 ? String(Math.round(value)) : String(Math.round(value * 10) / 10);
}

/** @param {number | null} s */
function wait(s) {
  return s === null ? "–" : lasting(s);
}

/** @param {Date} when */
function day(when) {
  return when.toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short" });
}

/** @param {Date} when */
function time(when) {
  return when.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

/** @param {Date} when @param {number} span_s */
function label(when, span_s) {
  return when.getHours() || span_s < 2 * 86400 ? time(when) : day(when);
}

/** A moment as a date field has it. @param {number} unix */
function local(unix) {
  const when = new Date(unix * 1000);
  return new Date(unix * 1000 - when.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
