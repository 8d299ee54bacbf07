/**
 * The connection to the server: brings events to whoever listens, begins anew when it must, and says how it stands.
 * @module
 */

/** Without so much as a sign of life for so long the server is taken for gone; it gives one every ten seconds. */
export const SILENCE_MAX_MS = 25_000;
const AGAIN_FIRST_MS = 500;
const AGAIN_MAX_MS = 10_000;

export class Stream {
  /**
   * @param {string} url
   * @param {{picture: (event: any) => void, change: (event: any) => boolean, standing: (isThere: boolean) => void}} to
   *   `change` says whether it could be taken; if not, the whole picture is asked for again.
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
    this._heard();
    source.addEventListener("picture", (event) => {
      this._heard();
      this._againMs = AGAIN_FIRST_MS;
      const part = JSON.parse(event.data);
      this._to.picture(part);
      if (part.complete) this._to.standing(true);
    });
    source.addEventListener("change", (event) => {
      this._heard();
      if (!this._to.change(JSON.parse(event.data))) this.open();
    });
    source.addEventListener("alive", () => this._heard());
    source.addEventListener("error", () => this._lost());
  }

  _heard() {
    clearTimeout(this._watch);
    this._watch = setTimeout(() => this._lost(), SILENCE_MAX_MS);
  }

  /** The browser would try again by itself, but not after every kind of answer; so this is done here for all. */
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
