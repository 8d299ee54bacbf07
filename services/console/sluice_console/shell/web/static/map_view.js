/**
 * The map: only the nodes in sight are in the document, and a change draws only what it changes.
 * @module
 * @import {Item} from "./layout.js"
 * @import {Gpu, NodeRow, Store} from "./store.js"
 */
import { count, percent, shortModel } from "./bars.js";
import { at, make } from "./dom.js";
import { groupOf, match } from "./filter.js";
import { gpuElement } from "./gpu_view.js";
import { clock } from "./head_view.js";
import { grid, idOf, inSight, place, sizeFor } from "./layout.js";
import { nodeOf } from "./store.js";

/** Pixels above and below what is seen that are drawn, too: a turn of the wheel. */
const AHEAD = 400;

export class MapView {
  /** @param {Store} store @param {(key: string, request: string) => void} chosen hears which GPU or slice is wanted */
  constructor(store, chosen) {
    this._store = store;
    this._chosen = chosen;
    this._box = at("map");
    this._canvas = at("canvas");
    /** @type {import("./filter.js").Term[]} */
    this._terms = [];
    /** Seconds by request. @type {Map<string, number>} */
    this._idle = new Map();
    this._by = "";
    /** @type {"" | "l" | "m" | "s"} */
    this._size = "";
    this._marked = "";
    this._focus = "";
    /** What the filter says of each node. @type {Map<string, {shown: boolean, lit: Map<string, Set<string>> | null, slices: number, group: string, gpus: number}>} */
    this._matched = new Map();
    /** @type {Item[]} */
    this._items = [];
    /** @type {Map<string, number>} */
    this._where = new Map();
    this._how = grid(0, "l");
    /** What is in the document, by item. @type {Map<string, {element: HTMLElement, top: number}>} */
    this._drawn = new Map();
    this._box.addEventListener("scroll", () => this._draw(), { passive: true });
    new ResizeObserver(() => this.arrange()).observe(this._box);
    this._canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => this._click(event));
    this._canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this._key(event));
    this._canvas.addEventListener("focusin", (/** @type {FocusEvent} */ event) => this._focused(event));
  }

  /** @param {{terms?: import("./filter.js").Term[], by?: string, size?: string}} wanted */
  show(wanted) {
    this._terms = wanted.terms ?? this._terms;
    this._by = wanted.by ?? this._by;
    this._size = /** @type {any} */ (wanted.size ?? this._size);
    this._matched.clear();
    this.arrange();
  }

  /** Mark what is idle. @param {Map<string, number>} idle seconds by request; changed or other teams' colours redraw all */
  mend(idle) {
    this._idle = idle;
    this._matched.clear();
    this.arrange();
    this._redraw();
  }

  /** Mark the places of one request. @param {string} request */
  mark(request) {
    if (request === this._marked) return;
    this._marked = request;
    this._redraw();
  }

  /** Rows have changed. @param {Iterable<string>} keys */
  changed(keys) {
    const nodes = new Set();
    for (const key of keys) {
      const node = nodeOf(key);
      if (node !== undefined) nodes.add(node);
    }
    let moved = false;
    for (const name of nodes) {
      const before = this._matched.get(name);
      const now = this._look(name);
      if (now === undefined) this._matched.delete(name);
      moved ||= before?.shown !== now?.shown || before?.group !== now?.group || before?.gpus !== now?.gpus;
    }
    if (moved) this.arrange();
    for (const key of keys) this._renew(key);
  }

  /** Recompute all positions; elements that stay are moved, not recreated. */
  arrange() {
    const width = this._box.clientWidth;
    const names = this._store.nodes();
    const gpus = names.reduce((sum, name) => sum + (this._store.gpusOf.get(name)?.length ?? 0), 0);
    const how = grid(width, this._size || sizeFor(gpus));
    const same = how.size === this._how.size && how.columns === this._how.columns && how.tile === this._how.tile;
    this._how = how;
    const shown = [];
    for (const name of names) {
      const said = this._matched.get(name) ?? this._look(name);
      if (said?.shown) shown.push({ name, group: said.group, gpus: said.gpus });
    }
    const sorter = new Intl.Collator("en", { numeric: true });
    shown.sort((one, other) => sorter.compare(one.group, other.group) || sorter.compare(one.name, other.name));
    const { items, height } = place(shown, how);
    this._items = items;
    this._where = new Map(items.map((item, index) => [idOf(item), index]));
    this._canvas.style.height = `${height}px`;
    this._canvas.className = `size-${how.size}${how.narrow ? " narrow" : ""}`;
    this._canvas.style.setProperty("--columns", String(how.columns));
    this._canvas.style.setProperty("--tile", `${how.tile}px`);
    at("found").textContent = this._found(shown.length, names.length);
    if (!same) this._clear();
    this._draw();
    this.onArranged?.(shown.length, names.length);
  }

  /** @type {((shown: number, all: number) => void) | undefined} */
  onArranged;

  /** What the filter has found, in words. @param {number} shown @param {number} all nodes */
  _found(shown, all) {
    if (this._terms.length === 0) return "";
    let slices = 0;
    let gpus = 0;
    for (const said of this._matched.values()) {
      slices += said.slices;
      gpus += said.lit?.size ?? 0;
    }
    return `${count(slices, "slice")} on ${count(gpus, "GPU")}, ${shown} of ${count(all, "node")}`;
  }

  /** @param {string} name */
  _look(name) {
    /** @type {NodeRow | undefined} */
    const node = this._store.get(`node/${name}`);
    if (node === undefined) return undefined;
    const gpus = this._store.gpus(name);
    const said = { ...match(this._terms, node, gpus, this._idle), group: groupOf(node, this._by), gpus: gpus.length };
    this._matched.set(name, said);
    return said;
  }

  _clear() {
    for (const { element } of this._drawn.values()) element.remove();
    this._drawn.clear();
  }

  _redraw() {
    const focus = this._focus;
    const had = this._canvas.contains(document.activeElement);
    this._clear();
    this._draw();
    if (had && focus) this._focusOn(focus);
  }

  _draw() {
    const top = this._box.scrollTop;
    const [first, last] = inSight(this._items, top - AHEAD, top + this._box.clientHeight + AHEAD);
    const wanted = new Set();
    /** @type {Element | null} */
    let before = null;
    for (const item of this._items.slice(first, last)) {
      const id = idOf(item);
      wanted.add(id);
      let drawn = this._drawn.get(id);
      if (drawn === undefined) {
        drawn = { element: item.kind === "node" ? this._node(item.name) : heading(item), top: -1 };
        this._drawn.set(id, drawn);
      }
      if (drawn.top !== item.top) this._move(drawn, item.top);
      if (item.kind === "node") this._dim(item.name, drawn.element);
      before = this._order(drawn.element, before);
    }
    for (const [id, { element }] of this._drawn) {
      if (wanted.has(id) || element.contains(document.activeElement)) continue;
      element.remove();
      this._drawn.delete(id);
    }
    this._reachable();
  }

  /**
   * Put an element in document order, for screen readers and Tab; not one that has the
   * focus, which it would lose.
   * @param {HTMLElement} element @param {Element | null} before
   */
  _order(element, before) {
    const is = element.isConnected ? element.previousElementSibling : undefined;
    if (is !== before && !(element.isConnected && element.contains(document.activeElement))) {
      if (before === null) this._canvas.prepend(element);
      else before.after(element);
    }
    return element;
  }

  /** Tab must lead to one GPU of those that are in the document: the last one that was looked at, else the first. */
  _reachable() {
    const now = this._canvas.querySelector('.gpu[tabindex="0"]');
    const first = this._canvas.querySelector(".gpu");
    if (first === null || now === first || (now !== null && this._focus)) return;
    if (now !== null) now.tabIndex = -1;
    first.tabIndex = 0;
  }

  /**
   * The filter may dim other GPUs of a node without moving any.
   * @param {string} name @param {HTMLElement} element
   */
  _dim(name, element) {
    const lit = this._matched.get(name)?.lit ?? null;
    for (const tile of element.querySelectorAll(".gpu")) dimTile(/** @type {HTMLElement} */ (tile), lit);
  }

  /** @param {{element: HTMLElement, top: number}} drawn @param {number} top */
  _move(drawn, top) {
    drawn.top = top;
    drawn.element.style.transform = `translateY(${top}px)`;
  }

  /** @param {string} name */
  _node(name) {
    const tiles = make("div", { class: "gpus" });
    for (const key of this._store.gpusOf.get(name) ?? []) tiles.append(this._tile(key));
    if (!tiles.hasChildNodes()) tiles.append(make("p", { class: "none" }, "no GPU"));
    return make("section", { class: "node", "aria-label": `node ${name}`, "data-node": name }, this._label(name), tiles);
  }

  /** @param {string} name */
  _label(name) {
    /** @type {NodeRow} */
    const node = this._store.get(`node/${name}`);
    const models = Object.entries(node.models ?? {}).map(([model, count]) => `${count} × ${shortModel(model)}`);
    const free = node.gpus ? `${percent(node.free ?? 0)} free` : "";
    const warnings = node.warnings ?? [];
    const asOf = node.observed_at && `as of ${clock(new Date(node.observed_at))}`; // first: a long reason is cut
    const note = [asOf, node.why, ...warnings].filter(Boolean).join(" · ");
    const state = node.state === "open" ? (warnings.length ? "warning" : "") : node.state;
    return make("header", { class: `label ${node.state.replaceAll(" ", "-")}`, title: [name, ...models, note].filter(Boolean).join(" · ") },
      make("div", { class: "name" }, make("b", {}, name), state && make("span", { class: "tag" }, state)),
      make("div", { class: "more" }, (state && note) || [models.join(", "), free].filter(Boolean).join(" · ")));
  }

  /** @param {string} key */
  _tile(key) {
    /** @type {Gpu} */
    const gpu = this._store.get(key);
    const how = { chosen: this._marked, size: this._how.size, tile: this._how.tile, idle: this._idle };
    const tile = gpuElement(key, gpu, how);
    dimTile(tile, this._matched.get(gpu.node)?.lit ?? null);
    if (this._store.get(`node/${gpu.node}`)?.state === "stale") tile.classList.add("stale");
    if (key === this._focus) tile.tabIndex = 0;
    return tile;
  }

  /** Redraw one row if it is in the document. @param {string} key */
  _renew(key) {
    const name = nodeOf(key);
    const drawn = name === undefined ? undefined : this._drawn.get(`node ${name}`);
    if (name === undefined || drawn === undefined) return;
    if (this._store.get(`node/${name}`) === undefined) return;
    if (key.startsWith("node/")) {
      drawn.element.firstElementChild?.replaceWith(this._label(name));
      const stale = this._store.get(key).state === "stale";
      for (const tile of drawn.element.querySelectorAll(".gpu")) tile.classList.toggle("stale", stale);
      this._dim(name, drawn.element);
      return;
    }
    const old = drawn.element.querySelector(`.gpu[data-key="${CSS.escape(key)}"]`);
    if (old === null || this._store.get(key) === undefined) {
      drawn.element.remove();
      this._drawn.delete(`node ${name}`);
      this._draw();
      return;
    }
    const had = old === document.activeElement;
    const tile = this._tile(key);
    tile.tabIndex = /** @type {HTMLElement} */ (old).tabIndex;
    old.replaceWith(tile);
    if (had) tile.focus({ preventScroll: true });
  }

  // -- selection -----------------------------------------------------------------------------------------------

  /** @param {MouseEvent} event */
  _click(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const tile = /** @type {HTMLElement | null} */ (target.closest(".gpu"));
    if (!tile) return;
    const slice = /** @type {HTMLElement | null} */ (target.closest("[data-request]"));
    this._focusOn(tile.dataset.key ?? "");
    this._chosen(tile.dataset.key ?? "", slice?.dataset.request ?? "");
  }

  /** @param {FocusEvent} event */
  _focused(event) {
    const tile = /** @type {HTMLElement | null} */ (/** @type {HTMLElement} */ (event.target).closest(".gpu"));
    if (!tile?.dataset.key) return;
    for (const other of this._canvas.querySelectorAll('.gpu[tabindex="0"]')) other.tabIndex = -1;
    tile.tabIndex = 0;
    this._focus = tile.dataset.key;
  }

  /** Arrows go from GPU to GPU, Enter chooses. @param {KeyboardEvent} event */
  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this._how.columns, ArrowUp: -this._how.columns }[event.key];
    if (step !== undefined) this.step(step);
    else if (event.key === "Home" || event.key === "End") this._toEnd(event.key === "Home");
    else if (event.key === "Enter" || event.key === " ") this._chosen(this._focus, "");
    else return;
    event.preventDefault();
  }

  /** To the GPU that stands so many further; the first one when none was looked at yet. @param {number} by */
  step(by) {
    const all = this._keys();
    const now = all.indexOf(this._focus);
    const next = all[now < 0 ? 0 : Math.max(0, Math.min(all.length - 1, now + by))];
    if (next !== undefined) this._focusOn(next);
  }

  /** @param {boolean} first */
  _toEnd(first) {
    const all = this._keys();
    const key = first ? all[0] : all[all.length - 1];
    if (key !== undefined) this._focusOn(key);
  }

  /** The GPUs' keys as they stand. */
  _keys() {
    return this._items.flatMap((item) => (item.kind === "node" ? this._store.gpusOf.get(item.name) ?? [] : []));
  }

  /** @param {string} key */
  _focusOn(key) {
    const name = nodeOf(key);
    const item = this._items[this._where.get(`node ${name}`) ?? -1];
    if (item === undefined) return;
    if (item.top < this._box.scrollTop) this._box.scrollTop = item.top;
    const over = item.top + item.height - this._box.scrollTop - this._box.clientHeight;
    if (over > 0) this._box.scrollTop += over;
    this._draw();
    const tile = this._canvas.querySelector(`.gpu[data-key="${CSS.escape(key)}"]`);
    tile?.focus({ preventScroll: true });
  }

  /** Begin here when a person comes to the map with Tab. */
  enter() {
    const all = this._keys();
    const first = all.includes(this._focus) ? this._focus : all[0];
    if (first !== undefined) this._focusOn(first);
  }
}

/**
 * Dim a GPU that is not meant, or those of its slices that are not.
 * @param {HTMLElement} tile @param {Map<string, Set<string>> | null} lit what is meant, by UUID; null for everything
 */
function dimTile(tile, lit) {
  const names = lit === null ? undefined : lit.get(tile.dataset.uuid ?? "");
  tile.classList.toggle("dimmed", lit !== null && names === undefined);
  for (const slot of /** @type {NodeListOf<HTMLElement>} */ (tile.querySelectorAll("[data-slot]"))) {
    slot.classList.toggle("faint", names !== undefined && !names.has(slot.dataset.slot ?? ""));
  }
}

/** @param {Item} item */
function heading(item) {
  return make("h2", { class: "heading" }, item.name, make("small", {}, count(item.count ?? 0, "node")));
}
