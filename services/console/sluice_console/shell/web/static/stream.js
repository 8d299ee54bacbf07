/**
 * The connection to the server: passes events on, reconnects when it has to, and reports its state.
 * @module
 */

/** A server silent for so long counts as gone; it sends a sign of life every ten seconds. */
export const SILENCE_MAX_MS = 25_000;
const AGAIN_FIRST_MS = 500;
const AGAIN_MAX_MS = 10_000;

export class Stream {
  /**
   * @param {string} url
   * @param {{picture: (event: any) => void, change: (event: any) => boolean, standing: (isThere: boolean) => void}} to
   *   `change` returns whether it could be applied; if not, the whole picture is requested again.
   */
  constructor(url, to) {
    this._url = url;
    this._to = to;
    this._againMs = AGAIN_FIRST_MS;
    /** @type {EventSource | null} */
    this._source = null;
    this._timer = 0;
    this._watch = 0;
  }

  open() {
    this._end();
    const source = new EventSource(this._url);
    this._source = source;
    this._alive();
    source.addEventListener("picture", (event) => {
      this._alive();
      this._againMs = AGAIN_FIRST_MS;
      const part = JSON.parse(event.data);
      this._to.picture(part);
      if (part.complete) this._to.standing(true);
    });
    source.addEventListener("change", (event) => {
      this._alive();
      if (!this._to.change(JSON.parse(event.data))) this.open();
    });
    source.addEventListener("alive", () => this._alive());
    source.addEventListener("error", () => this._lost());
  }

  _alive() {
    clearTimeout(this._watch);
    this._watch = setTimeout(() => this._lost(), SILENCE_MAX_MS);
  }

  /** Browsers reconnect, but not after every kind of answer; so this does it for all. */
  _lost() {
    this._end();
    this._to.standing(false);
    this._timer = setTimeout(() => this.open(), this._againMs * (0.75 + Math.random() / 2));
    this._againMs = Math.min(AGAIN_MAX_MS, this._againMs * 2);
  }

  _end() {
    clearTimeout(this._watch);
    clearTimeout(this._timer);
    this._source?.close();
    this._source = null;
  }
}
