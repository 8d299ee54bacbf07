/**
 * The selection: a request with its story, or a GPU with its places. Requested when selected, and again when
 * its row changes.
 * @module
 */
import { fitsText, memory, percent, shortModel, titleOf, WORDS } from "./bars.js";
import { ask, at, make } from "./dom.js";
import { clock } from "./head_view.js";
import { waterfalls } from "./trace_view.js";
import { uses } from "./use_view.js";

/** Several changes in a row cause one request. */
const AGAIN_AFTER_MS = 400;

export class DetailView {
  /** @param {{choose: (key: string) => void, close: () => void}} to */
  constructor(to) {
    this._to = to;
    this._box = at("detail");
    /** `request/ID` or `gpu/NODE/UUID`. */
    this.key = "";
    this._timer = 0;
    this._asked = 0;
  }

  /** @param {string} key empty closes it */
  async show(key) {
    this.key = key;
    clearTimeout(this._timer);
    this._box.hidden = key === "";
    if (key === "") return;
    await this._ask();
    if (this.key === key) this._box.focus({ preventScroll: true });
  }

  /** Rows have changed. @param {Iterable<string>} keys @param {boolean} concerned whether the shown request is affected */
  changed(keys, concerned) {
    if (this.key === "") return;
    for (const key of keys) concerned ||= key === this.key;
    if (!concerned) return;
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._ask(), AGAIN_AFTER_MS);
  }

  async _ask() {
    const key = this.key;
    const asked = ++this._asked;
    const [kind, ...rest] = key.split("/");
    const url = kind === "request"
      ? `/api/requests/${encodeURIComponent(rest.join("/"))}`
      : `/api/gpus/${encodeURIComponent(rest[rest.length - 1])}?node=${encodeURIComponent(rest.slice(0, -1).join("/"))}`;
    const answer = await ask(url);
    if (asked !== this._asked) return;
    if (answer.error) this._draw("Not available", make("p", { class: "why" }, answer.error));
    else if (kind === "request") await this._request(answer);
    else this._gpu(answer);
  }

  /** @param {string} title @param {...(Node | string | null | false | undefined)} children */
  _draw(title, ...children) {
    const close = make("button", { type: "button", class: "close", title: "Close (Escape)", onclick: () => this._to.close() }, "Close");
    this._box.replaceChildren(make("header", {}, make("h2", {}, title), close), ...children.filter((child) => child !== null && child !== undefined && child !== false));
  }

  /** @param {any} story */
  async _request(story) {
    const pod = story.pod;
    const devices = (pod.devices ?? []).map((/** @type {any} */ device) => {
      const what = device.share
        ? `${device.share.memory_mib} MiB of ${device.profile ?? "a whole GPU"}` : device.profile ?? "whole GPU";
      return make("li", {}, `${what}, at ${device.start}, `, this._link(`gpu/${pod.node}/${device.gpu}`, device.gpu.slice(0, 12)));
    });
    const trace = make("div", { class: "trace", hidden: true });
    const use = make("div", { hidden: true });
    this._draw(pod.namespace ? `${pod.namespace}/${pod.name}` : pod.request,
      make("p", { class: `state ${pod.state}` }, make("span", { class: "tag" }, pod.state), " ", pod.message),
      (pod.warnings ?? []).length > 0 && make("ul", { class: "warnings" }, ...pod.warnings.map((/** @type {string} */ text) => make("li", {}, text))),
      facts([["Request", pod.request], ["Source", pod.origin], ["Node", pod.node], ["Allocation", pod.allocation]]),
      devices.length > 0 && make("ul", { class: "devices" }, ...devices),
      use,
      make("h3", {}, "Story"),
      steps(story.steps ?? []),
      trace);
    await Promise.all([pod.state === "bound" && this._use(pod.request, use), this._trace(pod.request, trace)]);
  }

  /** Show the usage of the request's slices, if its agent reports it. @param {string} request @param {HTMLElement} box */
  async _use(request, box) {
    const found = await ask(`/api/usage/${encodeURIComponent(request)}`);
    const parts = found.error ? [] : uses(found);
    if (parts.length === 0) return;
    box.append(...parts);
    box.hidden = false;
  }

  /** Draw the request's waterfall below its story, if there is one. @param {string} request @param {HTMLElement} box */
  async _trace(request, box) {
    const url = `/api/trace/${encodeURIComponent(request)}`;
    const found = await ask(url);
    const parts = found.error ? [] : waterfalls(found);
    if (parts.length === 0) return;
    const viewers = found.viewer ? found.parts.map((/** @type {any} */ each) => make("a", {
      href: found.viewer.replaceAll("{trace_id}", encodeURIComponent(each.trace_id)), target: "_blank", rel: "noopener",
    }, `Open the trace of the ${each.part}`)) : [];
    box.append(...parts, make("p", { class: "links" }, ...viewers,
      make("a", { href: url, target: "_blank", rel: "noopener" }, "The trace as JSON")));
    box.hidden = false;
  }

  /** @param {any} gpu */
  _gpu(gpu) {
    const places = [...gpu.instances].sort((one, other) => one.start - other.start).map((place) => {
      const shares = place.tenants.map((/** @type {any} */ tenant) => make("li", {},
        this._link(`request/${tenant.request}`, tenant.owner),
        ` ${tenant.share.memory_mib} MiB${tenant.share.sm_partition ? `, ${tenant.share.sm_partition} % of the SMs` : ""}, ${WORDS[tenant.state] ?? tenant.state}`));
      const daemon = place.daemon && `MPS daemon ${place.daemon.state}, ${place.daemon.clients} clients${place.daemon.message ? `: ${place.daemon.message}` : ""}`;
      return make("li", {},
        make("b", {}, `${place.profile || `${place.size} units`} at ${place.start}`), " ",
        place.request ? this._link(`request/${place.request}`, place.owner || place.request) : titleOf({ ...place, profile: "", daemon: "", owner: place.owner, shares: [] }),
        place.request && ` ${WORDS[place.state] ?? place.state}`,
        place.out_of_use && " (not used for new slices)",
        daemon && make("p", {}, daemon),
        shares.length > 0 && make("ul", {}, ...shares));
    });
    this._draw(`GPU ${gpu.index} on ${gpu.node}`,
      !gpu.healthy && make("p", { class: "why" }, `${gpu.lost ? "lost" : "unhealthy"}: ${gpu.health_message}`),
      gpu.cordoned && make("p", { class: "why" }, `cordoned: ${gpu.cordon_why || "no reason given"}`),
      gpu.stale && make("p", { class: "why" }, `stale: ${gpu.stale_message}; as of ${clock(new Date(gpu.observed_at))}`),
      facts([
        ["Model", shortModel(gpu.model)],
        ["Memory", memory(gpu.memory_mib)],
        ["In use", percent(gpu.allocated_fraction)],
        ["Room", fitsText({ ...gpu, mig: gpu.mig_enabled, fits: gpu.creatable }) || "MIG is off"],
        ["UUID", gpu.uuid],
        ["Observed", clock(new Date(gpu.observed_at))],
      ]),
      make("h3", {}, "On it"),
      places.length ? make("ul", { class: "places" }, ...places) : make("p", {}, "nothing"));
  }

  /** @param {string} key @param {string} text */
  _link(key, text) {
    return make("button", { type: "button", class: "link", onclick: () => this._to.choose(key) }, text);
  }
}

/** @param {[string, string][]} entries */
function facts(entries) {
  return make("dl", { class: "facts" }, ...entries.filter(([, value]) => value)
    .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

/** @param {{time: string, type: string, text: string}[]} all */
function steps(all) {
  if (all.length === 0) return make("p", {}, "The history has no record of it (any more).");
  const first = new Date(all[0].time);
  return make("ol", { class: "steps" }, ...all.map((step) => {
    const when = new Date(step.time);
    return make("li", {},
      make("time", { datetime: step.time, title: step.time }, after(first, when)),
      make("p", {}, step.text));
  }));
}

/**
 * When a step was, counted from the first: `+1.25 s`; the first one as the time of day.
 * @param {Date} first
 * @param {Date} when
 */
export function after(first, when) {
  const ms = when.getTime() - first.getTime();
  if (Number.isNaN(ms)) return "";
  if (ms === 0) return when.toLocaleTimeString("en-GB");
  const sign = ms < 0 ? "−" : "+";
  const s = Math.abs(ms) / 1000;
  if (s < 60) return `${sign}${s.toFixed(s < 10 ? 2 : 1)} s`;
  const whole = Math.round(s);
  return s < 3600 ? `${sign}${Math.floor(whole / 60)} min ${whole % 60} s` : `${sign}${(s / 3600).toFixed(1)} h`;
}
