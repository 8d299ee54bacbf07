/**
 * The requests that have no slice: who waits for what, and why.
 * @module
 * @import {RequestRow} from "./store.js"
 */
import { at, make } from "./dom.js";

/** Rows that are drawn: more than anybody reads; the filter finds the others. */
const SHOWN_MAX = 200;
const OFFERED_MAX = 8;
const ORDER = ["waiting", "requested", "refused", "making", "ending"];

/**
 * Those that are meant, in the order in which they are shown.
 * @param {RequestRow[]} requests
 * @param {string[]} wanted the words of the filter; those of GPUs (`is:`) say nothing here
 * @param {string} reason only those that wait for it
 */
export function meant(requests, wanted, reason) {
  const plain = wanted.filter((word) => !word.startsWith("is:"));
  return requests
    .filter((row) => !reason || (row.reasons ?? []).some((each) => each.reason === reason))
    .filter((row) => {
      const text = `${row.namespace}/${row.name} ${row.request} ${row.state} ${row.message}`.toLowerCase();
      return plain.every((word) => text.includes(word));
    })
    .sort((one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state) ||
      `${one.namespace}/${one.name}`.localeCompare(`${other.namespace}/${other.name}`, "en", { numeric: true }));
}

/**
 * How many requests wait for each reason, the most frequent first.
 * @param {RequestRow[]} requests
 * @returns {[string, number][]}
 */
export function reasons(requests) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const row of requests) {
    for (const reason of new Set((row.reasons ?? []).map((each) => each.reason))) {
      counts.set(reason, (counts.get(reason) ?? 0) + 1);
    }
  }
  return [...counts].sort((one, other) => other[1] - one[1] || one[0].localeCompare(other[0]));
}

/**
 * The reasons that have a button: the most frequent ones, and the one that was chosen, which must be let go of again.
 * @param {[string, number][]} counted
 * @param {string} chosen
 */
export function offered(counted, chosen) {
  return counted.filter(([reason], index) => index < OFFERED_MAX || reason === chosen);
}

export class QueueView {
  /** @param {(request: string) => void} chosen */
  constructor(chosen) {
    this._reason = "";
    /** @type {RequestRow[]} */
    this._requests = [];
    /** @type {string[]} */
    this._wanted = [];
    this._unlisted = 0;
    at("requests").addEventListener("click", (/** @type {any} */ event) => {
      const button = event.target.closest("button");
      if (button) chosen(button.dataset.request);
    });
    at("reasons").addEventListener("click", (/** @type {any} */ event) => {
      const button = event.target.closest("button");
      if (!button) return;
      this._reason = this._reason === button.dataset.reason ? "" : button.dataset.reason;
      this._draw();
    });
  }

  /** @param {RequestRow[]} requests @param {string[]} wanted @param {number} unlisted */
  show(requests, wanted, unlisted) {
    this._requests = requests;
    this._wanted = wanted;
    this._unlisted = unlisted;
    this._draw();
  }

  _draw() {
    const counted = reasons(this._requests);
    if (this._reason && !counted.some(([reason]) => reason === this._reason)) this._reason = "";
    const found = meant(this._requests, this._wanted, this._reason);
    const focused = /** @type {any} */ (document.activeElement)?.dataset?.request;
    at("queue-title").textContent = this._requests.length ? `Requests without a slice (${this._requests.length + this._unlisted})` : "Requests";
    at("reasons").replaceChildren(...offered(counted, this._reason).map(([reason, count]) => make("li", {},
      make("button", { type: "button", "data-reason": reason, "aria-pressed": String(reason === this._reason) },
        reason, make("small", {}, String(count))))));
    at("requests").replaceChildren(...found.slice(0, SHOWN_MAX).map((row) => make("li", {},
      make("button", { type: "button", class: row.state, "data-request": row.request },
        make("span", { class: "tag" }, row.state),
        make("b", {}, make("span", { class: "ns" }, row.namespace ? `${row.namespace}/` : ""), row.name || row.request),
        make("p", {}, row.message.replace(/^(waits|refused): /, ""))))));
    const more = Math.max(0, found.length - SHOWN_MAX) + this._unlisted;
    at("nobody").textContent = this._requests.length === 0
      ? "No request waits: each has its slice."
      : found.length === 0 ? "No request matches the filter."
        : more ? `and ${more} more; narrow them down with the filter.` : "";
    if (focused) at("requests").querySelector(`[data-request="${CSS.escape(focused)}"]`)?.focus();
  }
}
