/**
 * The server's rows by key, at one revision. Independent of DOM and connection.
 * @module
 *
 * @typedef {{owner: string, request: string, state: string, memory_mib: number, sm_percent?: number}} Share
 * @typedef {{start: number, size: number, state: string, profile?: string, owner?: string, request?: string,
 *   shares?: Share[], daemon?: string, ill?: boolean, out_of_use?: boolean, message?: string}} Place
 * @typedef {{node: string, uuid: string, index: number, model: string, memory_mib: number, units: number,
 *   mig?: boolean, fixed?: boolean, places?: Place[], fits?: Record<string, number>, in_use?: number,
 *   trouble?: string, cordoned?: string}} Gpu
 * @typedef {{node: string, state: string, why?: string, pool?: string, models?: Record<string, number>, gpus?: number,
 *   empty?: number, free?: number, pods?: number, driver?: string, warnings?: string[], observed_at?: string}} NodeRow
 * @typedef {{request: string, namespace: string, name: string, state: string, message: string,
 *   reasons?: {reason: string, count: number}[], ask?: string, asked_at?: string, priority?: number, helps?: string,
 *   reserved?: boolean}} RequestRow
 * @typedef {{gpus?: number, memory_mib?: number, compute_slices?: number}} Amounts
 * @typedef {{team: string, used: Amounts, quota?: Amounts, guaranteed?: Amounts, pods?: number, waiting?: number}} TeamRow
 * @typedef {{revision: number, first?: boolean, complete?: boolean, rows: Record<string, any>, gone?: string[]}} Event
 */

export class Store {
  constructor() {
    /** @type {Map<string, any>} */
    this.rows = new Map();
    /** Each node's GPU keys, in the order of their index. @type {Map<string, string[]>} */
    this.gpusOf = new Map();
    this.revision = -1;
    this.complete = false;
    /** The parts of a second picture, until it has come whole. @type {Map<string, any> | null} */
    this._fresh = null;
  }

  /**
   * One part of a whole picture. The first picture shows as it comes; a later one replaces what there is at once, when
   * it has come whole.
   * @param {Event} event
   * @returns {string[]} the keys whose rows have changed
   */
  picture(event) {
    if (event.first) this._fresh = this.complete ? new Map() : null;
    if (event.first && !this.complete) this._forget();
    this.revision = event.revision;
    if (this._fresh === null) {
      this.complete = event.complete === true;
      return this._take(event.rows, []);
    }
    for (const [key, row] of Object.entries(event.rows)) this._fresh.set(key, row);
    if (!event.complete) return [];
    const fresh = this._fresh;
    this._fresh = null;
    const gone = [...this.rows.keys()].filter((key) => !fresh.has(key));
    const changed = [...fresh].filter(([key, row]) => JSON.stringify(row) !== JSON.stringify(this.rows.get(key)));
    return this._take(Object.fromEntries(changed), gone);
  }

  /**
   * What has changed since the revision before.
   * @param {Event} event
   * @returns {string[] | null} the keys whose rows have changed; null if a revision is missing
   */
  change(event) {
    if (!this.complete || this._fresh !== null || event.revision !== this.revision + 1) return null;
    this.revision = event.revision;
    return this._take(event.rows, event.gone ?? []);
  }

  /** @param {string} key @returns {any} */
  get(key) {
    return this.rows.get(key);
  }

  /** @returns {string[]} */
  nodes() {
    return [...this.gpusOf.keys()];
  }

  /** @param {string} name @returns {Gpu[]} */
  gpus(name) {
    return (this.gpusOf.get(name) ?? []).map((key) => this.rows.get(key));
  }

  /** @returns {RequestRow[]} */
  requests() {
    return this._of("request/");
  }

  /** @returns {TeamRow[]} by name */
  teams() {
    return this._of("team/").sort((one, other) => one.team.localeCompare(other.team));
  }

  /** @param {string} prefix */
  _of(prefix) {
    const found = [];
    for (const [key, row] of this.rows) if (key.startsWith(prefix)) found.push(row);
    return found;
  }

  _forget() {
    this.rows.clear();
    this.gpusOf.clear();
  }

  /**
   * @param {Record<string, any>} rows
   * @param {string[]} gone
   */
  _take(rows, gone) {
    for (const key of gone) {
      const row = this.rows.get(key);
      if (row === undefined) continue;
      this.rows.delete(key);
      if (key.startsWith("node/")) this.gpusOf.delete(row.node);
      const keys = key.startsWith("gpu/") ? this.gpusOf.get(row.node) : undefined;
      if (keys) this.gpusOf.set(row.node, keys.filter((each) => each !== key));
    }
    for (const [key, row] of Object.entries(rows)) {
      const before = this.rows.get(key);
      this.rows.set(key, row);
      if (key.startsWith("node/") && !this.gpusOf.has(row.node)) this.gpusOf.set(row.node, []);
      // A driver may count GPUs in another order after a restart.
      if (key.startsWith("gpu/") && before?.index !== row.index) this._place(key, row);
    }
    return [...Object.keys(rows), ...gone];
  }

  /** @param {string} key @param {Gpu} gpu */
  _place(key, gpu) {
    const keys = (this.gpusOf.get(gpu.node) ?? []).filter((each) => each !== key);
    keys.push(key);
    keys.sort((one, other) => this.rows.get(one).index - this.rows.get(other).index);
    this.gpusOf.set(gpu.node, keys);
  }
}

/**
 * The node that a row is about; undefined where it is about none.
 * @param {string} key
 */
export function nodeOf(key) {
  if (key.startsWith("node/")) return key.slice(5);
  return key.startsWith("gpu/") ? key.slice(4, key.lastIndexOf("/")) : undefined;
}
