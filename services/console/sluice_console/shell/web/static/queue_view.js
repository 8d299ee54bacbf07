/**
 * The requests without a slice in the order of their turns: what they ask for, since when, why, and what helps.
 * @module
 * @import {RequestRow} from "./store.js"
 * @import {Term} from "./filter.js"
 */
import { arrange, at, make } from "./dom.js";
import { picksRequest } from "./filter.js";
import { reasonText } from "./reasons.js";
import { lasting } from "./use_view.js";

/** Rows drawn at most; the filter finds the others. */
const SHOWN_MAX = 200;
const OFFERED_MAX = 8;
/** One for all: to make one costs more than to compare. */
const NAMES = new Intl.Collator("en", { numeric: true });
const ORDER = ["waiting", "requested", "refused", "making", "ending"];

/** The requests in turn: the waiting ones first, by priority, then age. @param {RequestRow[]} requests */
export function inTurn(requests) {
  return [...requests].sort((one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state) ||
    (other.priority ?? 0) - (one.priority ?? 0) || byAge(one.asked_at ?? "", other.asked_at ?? "") ||
    NAMES.compare(`${one.namespace}/${one.name}`, `${other.namespace}/${other.name}`));
}

/** @param {string} one @param {string} other times of one form */
function byAge(one, other) {
  return one < other ? -1 : Number(one > other);
}

/**
 * Those that match.
 * @param {RequestRow[]} requests
 * @param {Term[]} terms
 * @param {string} reason only requests that wait for it; empty for all
 */
export function matching(requests, terms, reason) {
  return requests
    .filter((row) => !reason || (row.reasons ?? []).some((each) => each.reason === reason))
    .filter((row) => picksRequest(terms, row));
}

/** The turn of each waiting request, from 1. @param {RequestRow[]} sorted @returns {Map<string, number>} */
export function turns(sorted) {
  const waiting = sorted.filter((row) => row.state === "waiting");
  return new Map(waiting.map((row, index) => [row.request, index + 1]));
}

/** The request that has waited longest; undefined if unknown. @param {RequestRow[]} requests */
export function longest(requests) {
  const waiting = requests.filter((row) => row.state === "waiting" && row.asked_at);
  return waiting.reduce((first, row) => (first && (first.asked_at ?? "") <= (row.asked_at ?? "") ? first : row),
    /** @type {RequestRow | undefined} */ (undefined));
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
 * The reasons with a button: the most frequent ones, and the chosen one, so that it can be released.
 * @param {[string, number][]} counted
 * @param {string} chosen
 */
export function offered(counted, chosen) {
  return counted.filter(([reason], index) => index < OFFERED_MAX || reason === chosen);
}

/** How long ago it was; empty if unknown. @param {string | undefined} time @param {number} [now] milliseconds */
export function age(time, now = Date.now()) {
  const began = new Date(time ?? "").getTime();
  return Number.isNaN(began) ? "" : lasting(Math.max(0, (now - began) / 1000));
}

export class QueueView {
  constructor() {
    this._reason = "";
    /** @type {RequestRow[]} */
    this._requests = [];
    /** @type {Term[]} */
    this._terms = [];
    this._unlisted = 0;
    /** What is drawn of each request, and when it has to be drawn again. @type {Map<string, {row: RequestRow, waited: string, element: HTMLElement}>} */
    this._drawn = new Map();
    at("reasons").addEventListener("click", (/** @type {any} */ event) => {
      const button = event.target.closest("button");
      if (!button) return;
      this._reason = this._reason === button.dataset.reason ? "" : button.dataset.reason;
      this.draw();
    });
  }

  /** @param {RequestRow[]} requests @param {Term[]} terms @param {number} unlisted */
  show(requests, terms, unlisted) {
    this._requests = inTurn(requests);
    this._terms = terms;
    this._unlisted = unlisted;
    this.draw();
  }

  /** Ages change by themselves. */
  draw() {
    const counted = reasons(this._requests);
    if (this._reason && !counted.some(([reason]) => reason === this._reason)) this._reason = "";
    const found = matching(this._requests, this._terms, this._reason);
    const focused = /** @type {any} */ (document.activeElement)?.dataset?.request;
    const turn = turns(this._requests);
    const first = longest(this._requests);
    at("longest").replaceChildren(...(first ? ["Longest: ", make("button", { type: "button", class: "link", "data-request": first.request },
      `${first.namespace}/${first.name}`), `, ${age(first.asked_at)}`] : []));
    at("reasons").replaceChildren(...offered(counted, this._reason).map(([reason, count]) => make("li", {},
      make("button", { type: "button", title: reason, "data-reason": reason, "aria-pressed": String(reason === this._reason) },
        reasonText(reason), make("small", {}, String(count))))));
    arrange(at("requests"), found.slice(0, SHOWN_MAX).map((row) => this._element(row, turn.get(row.request))));
    for (const [request, { element }] of this._drawn) if (!element.isConnected) this._drawn.delete(request);
    const more = Math.max(0, found.length - SHOWN_MAX) + this._unlisted;
    at("queue-note").textContent = this._requests.length === 0
      ? "No request waits: each has its slice."
      : found.length === 0 ? "No request matches the filter."
        : more ? `and ${more} more; narrow them down with the filter.` : "";
    if (focused) at("requests").querySelector(`[data-request="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  /** Of one that has not changed only its turn is written. @param {RequestRow} row @param {number | undefined} turn */
  _element(row, turn) {
    const waited = age(row.asked_at);
    const before = this._drawn.get(row.request);
    const element = before?.element ?? make("li", {}, make("button", { type: "button", "data-request": row.request }));
    if (before?.row !== row || before.waited !== waited) {
      const button = /** @type {HTMLElement} */ (element.firstElementChild);
      button.className = row.state;
      button.replaceChildren(...parts(row, waited));
      this._drawn.set(row.request, { row, waited, element });
    }
    const place = element.querySelector(".turn");
    if (place && place.textContent !== `${turn}.`) place.textContent = `${turn}.`;
    return element;
  }
}

/** What a row shows. @param {RequestRow} row @param {string} waited */
function parts(row, waited) {
  return [
    make("span", { class: "line" },
      row.state === "waiting" && make("span", { class: "turn", title: "its turn in the queue" }),
      make("b", {}, make("span", { class: "ns" }, row.namespace ? `${row.namespace}/` : ""), row.name || row.request),
      row.state !== "waiting" && make("span", { class: "tag" }, row.state),
      row.reserved && make("span", { class: "tag good", title: "it starts there when the pods on it have ended" }, "place reserved"),
      waited && make("time", { datetime: row.asked_at, title: `asked ${row.asked_at}` }, waited)),
    make("span", { class: "asks" }, [row.ask && `asks for ${row.ask}`, row.priority && `priority ${row.priority}`].filter(Boolean).join(", ")),
    make("p", {}, row.message.replace(/^(waits|refused): /, "")),
    ...(row.helps && row.state === "waiting" ? [make("p", { class: "helps" }, row.helps)] : []),
  ];
}
