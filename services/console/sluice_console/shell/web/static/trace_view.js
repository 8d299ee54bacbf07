/**
 * The waterfall of one request: a bar per step with its start and duration.
 * @module
 *
 * @typedef {{name: string, kind: "wait" | "step" | "word", service: string, began_ms: number, took_ms: number | null,
 *   text?: string}} Span
 * @typedef {{part: string, trace_id: string, took_ms: number, spans: Span[], left_out?: number}} Part
 */
import { make } from "./dom.js";

/** A bar is at least this wide, in percent, so that short steps are visible. */
const LEAST = 0.6;
const NAMES = /** @type {Record<string, string>} */ ({ request: "Until the slice", running: "While it ran", release: "Release" });

/**
 * @param {{parts: Part[]}} trace
 * @returns {HTMLElement[]} one waterfall for each part; none when the history knows none
 */
export function waterfalls(trace) {
  return trace.parts.filter((part) => part.spans.length > 0).map((part) => make("section", { class: "waterfall" },
    make("h3", {}, NAMES[part.part] ?? part.part, make("small", {}, took(part.took_ms))),
    make("ol", {}, ...part.spans.map((span) => row(part, span))),
    part.left_out ? make("p", {}, `${part.left_out} earlier steps are left out.`) : null));
}

/** @param {Part} part @param {Span} span */
function row(part, span) {
  const { left, width } = bar(span, part.took_ms);
  const time = span.took_ms === null ? "" : took(span.took_ms);
  const line = make("i", { class: span.kind });
  line.style.left = `${left}%`;
  line.style.width = `${width}%`;
  return make("li", { title: [span.name, span.service, time, span.text].filter(Boolean).join(" · ") },
    make("span", { class: "what" }, span.name, make("small", {}, span.service)),
    make("span", { class: "lane" }, line),
    make("span", { class: "took" }, time));
}

/**
 * Where a step's bar stands, in percent of the whole, inside it whatever the clocks of the services say.
 * @param {Pick<Span, "began_ms" | "took_ms">} span
 * @param {number} whole in milliseconds
 */
export function bar(span, whole) {
  const all = Math.max(whole, 1e-6);
  const left = Math.min(100 - LEAST, Math.max(0, (100 * span.began_ms) / all));
  const width = Math.min(100 - left, Math.max(LEAST, (100 * (span.took_ms ?? 0)) / all));
  return { left, width };
}

/** @param {number} ms */
export function took(ms) {
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(2)} s`;
  const s = Math.round(ms / 1000);
  return `${Math.floor(s / 60)} min ${s % 60} s`;
}
