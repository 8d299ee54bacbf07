import assert from "node:assert/strict";
import { test } from "node:test";
import { groupOf, match, picksTeam } from "../static/filter.js";
import { grid, idOf, inSight, place, sizeFor } from "../static/layout.js";
import { age, inTurn, longest, matching, offered, reasons, turns } from "../static/queue_view.js";
import { standing } from "../static/head_view.js";
import { after } from "../static/detail_view.js";
import { moments, stacked, ticks } from "../static/time_view.js";
import { colour, assignHue } from "../static/bars.js";
import { bar, took } from "../static/trace_view.js";

const node = { node: "gpu-1", state: "open", pool: "training", models: { "NVIDIA A100": 2 } };
const busy = { node: "gpu-1", uuid: "GPU-a", index: 0, model: "NVIDIA A100", units: 8, in_use: 1,
  places: [{ start: 0, size: 8, state: "ready", owner: "research/train", profile: "7g.40gb", request: "r1" }] };
const empty = { node: "gpu-1", uuid: "GPU-b", index: 1, model: "NVIDIA A100", units: 8, places: [] };

/** As the server parses them. */
const terms = (query) => query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
  const [, minus, key, value] = /^(-?)(?:(\w+):)?(.*)$/.exec(word);
  return { key: key ?? "", value, negated: minus === "-" };
});
const idle = new Map([["r1", 7200]]);
const shows = (query, of = node, gpus = [busy, empty]) => {
  const { shown, lit } = match(terms(query), of, gpus, idle);
  return [shown, lit === null ? [] : gpus.filter((gpu) => !lit.has(gpu.uuid)).map((gpu) => gpu.uuid)];
};

test("every word must be found, on the GPU or on its node, in any case", () => {
  assert.deepEqual(shows(""), [true, []]);
  assert.deepEqual(shows("gpu-1"), [true, []]);
  assert.deepEqual(shows("TRAINING a100"), [true, []]);
  assert.deepEqual(shows("research/"), [true, ["GPU-b"]]);
  assert.deepEqual(shows("7g gpu-1"), [true, ["GPU-b"]]);
  assert.deepEqual(shows("research gpu-2"), [false, ["GPU-a", "GPU-b"]]);
  assert.deepEqual(shows("gpu-b")[0], false, "the name of a node");
  assert.deepEqual(shows("gpu-b001", node, [busy, { ...empty, uuid: "GPU-b001-2" }]), [true, ["GPU-a"]]);
});

test("what a GPU is can be asked for", () => {
  assert.deepEqual(shows("is:empty"), [true, ["GPU-a"]]);
  assert.deepEqual(shows("is:trouble"), [false, ["GPU-a", "GPU-b"]]);
  assert.deepEqual(shows("is:trouble", { ...node, state: "stale" })[0], true);
  assert.deepEqual(shows("is:room", node, [{ ...empty, in_use: 0 }])[0], true);
  assert.deepEqual(shows("is:room", { ...node, state: "cordoned" })[0], false);
  assert.deepEqual(shows("is:trouble", node, [{ ...empty, trouble: "lost" }])[0], true);
  assert.deepEqual(shows("is:nothing-of-the-kind")[0], false);
});

test("of a GPU that several share only the slices that are meant are lit", () => {
  const shared = { ...busy, places: [
    { start: 0, size: 4, state: "ready", owner: "research/train", profile: "3g.20gb", request: "r1" },
    { start: 4, size: 4, state: "ready", profile: "3g.20gb", shares: [
      { owner: "batch/a", request: "r2", state: "making" }, { owner: "research/b", request: "r3", state: "ready" }] }] };
  const lit = (query) => [...match(terms(query), node, [shared], idle).lit?.get("GPU-a") ?? []];
  assert.deepEqual(lit("team:research"), ["0", "4/r3"]);
  assert.deepEqual(lit("team:re*"), ["0", "4/r3"]);
  assert.deepEqual(lit("-team:research"), ["4/r2"]);
  assert.deepEqual(lit("is:idle"), ["0"]);
  assert.deepEqual(lit("is:changing node:gpu-1"), ["4/r2"]);
  assert.deepEqual(lit("node:gpu-2 team:batch"), []);
});

test("a node without GPUs is found by its name", () => {
  assert.deepEqual(shows("gpu-1", node, []), [true, []]);
  assert.deepEqual(shows("research", node, []), [false, []]);
});

test("nodes are grouped by what they say", () => {
  assert.deepEqual(["pool", "model", "state", ""].map((by) => groupOf(node, by)), ["training", "A100", "open", ""]);
  assert.equal(groupOf({ node: "x", state: "open" }, "pool"), "no pool");
});

test("only what is in sight is drawn: the same number for ten nodes as for ten thousand", () => {
  const how = grid(1000, "s");
  const all = (count) => place(Array.from({ length: count }, (_, n) => ({ name: `n${n}`, group: "", gpus: 8 })), how);
  const few = all(100);
  const many = all(10_000);
  const count = ({ items }, from, to) => { const [first, last] = inSight(items, from, to); return last - first; };
  assert.equal(count(few, 0, 800), count(many, 0, 800));
  assert.ok(Math.abs(count(many, 5_000, 5_800) - count(few, 100, 900)) <= 1, "one more where two are cut in half");
  assert.equal(count(few, few.height + 10, few.height + 800), 0);
  const [first] = inSight(many.items, many.items[70].top, many.items[71].top);
  assert.equal(first, 70);
});

test("nothing stands on anything else", () => {
  for (const width of [300, 700, 1000, 2400]) {
    for (const size of ["s", "m", "l"]) {
      const how = grid(width, size);
      assert.ok(how.columns >= 1 && how.tile > 0);
      const { items, height } = place([
        { name: "a", group: "x", gpus: 16 }, { name: "b", group: "x", gpus: 0 }, { name: "c", group: "y", gpus: 1 },
      ], how);
      assert.deepEqual(items.map((item) => item.kind), ["heading", "node", "node", "heading", "node"]);
      items.reduce((bottom, item) => { assert.equal(item.top, bottom); return item.top + item.height; }, 0);
      assert.equal(height, items.at(-1).top + items.at(-1).height);
    }
  }
});

test("a few GPUs are drawn large, thousands small", () => {
  assert.deepEqual([4, 100, 8000].map(sizeFor), ["l", "m", "s"]);
});

const row = (name, state, reason) => ({ request: name, namespace: "ns", name, state, message: "m", reasons: reason ? [{ reason, count: 4 }] : [] });

test("who waits comes first, and reasons are counted by request", () => {
  const all = [row("b", "refused"), row("a10", "waiting", "GpuLayoutFull"), row("a9", "waiting", "GpuLayoutFull"), row("c", "waiting", "QuotaExceeded")];
  assert.deepEqual(matching(inTurn(all), [], "").map((each) => each.name), ["a9", "a10", "c", "b"]);
  assert.deepEqual(matching(all, terms("a1"), "").map((each) => each.name), ["a10"]);
  assert.deepEqual(matching(all, terms("is:room"), "QuotaExceeded").map((each) => each.name), ["c"]);
  assert.deepEqual(reasons(all), [["GpuLayoutFull", 2], ["QuotaExceeded", 1]]);
});

test("how old the picture may be is said, and a lost server before a lost broker", () => {
  const there = { isThere: true, since: new Date() };
  assert.equal(standing(there, { state: "live" })[0], "live");
  assert.match(standing(there, { state: "lost", since: "2026-01-01T12:00:00Z", message: "the broker does not answer" })[2],
    /^The broker does not answer since 1 Jan 2026, \d\d:\d\d:\d\d\. The page shows the state of that time/);
  assert.match(standing({ isThere: false, since: new Date() }, { state: "live" })[2], /^The server of this page does not answer since/);
  assert.equal(standing(there, undefined)[0], "reading");
});

test("steps are told by how long after the first one they were", () => {
  const first = new Date("2026-01-01T00:00:00Z");
  const at = (s) => after(first, new Date(first.getTime() + s * 1000));
  assert.deepEqual([0.25, 12.34, 75, 7200, -1].map(at), ["+0.25 s", "+12.3 s", "+1 min 15 s", "+2.0 h", "−1.00 s"]);
  assert.equal(at(119.7), "+2 min 0 s");
  assert.equal(after(first, new Date("x")), "");
});

test("a step of a trace stands where it was, and inside, whatever the services' clocks say", () => {
  assert.deepEqual(bar({ began_ms: 10, took_ms: 20 }, 40), { left: 25, width: 50 });
  assert.deepEqual(bar({ began_ms: -5, took_ms: null }, 40), { left: 0, width: 0.6 });
  const late = bar({ began_ms: 100, took_ms: 100 }, 40);
  assert.ok(late.left + late.width <= 100 && late.width > 0);
  assert.deepEqual([0.2, 250.4, 1500, 61_000].map(took), ["<1 ms", "250 ms", "1.50 s", "1 min 1 s"]);
});

test("a heading that counts other nodes than before is drawn again, and a node is not", () => {
  const how = grid(1400, "l");
  const ids = (names) => place(names.map((name) => ({ name, group: "training", gpus: 1 })), how).items.map(idOf);
  const [heading, node] = ids(["a", "b"]);
  assert.notEqual(ids(["a"])[0], heading);
  assert.equal(ids(["a"])[1], node);
});

test("a reason that was chosen keeps its button, however many others there are", () => {
  const counted = Array.from("abcdefghijk", (reason) => [reason, 1]);
  assert.equal(offered(counted, "").length, 8);
  assert.deepEqual(offered(counted, "k").map(([reason]) => reason).slice(-2), ["h", "k"]);
});

test("two minutes are not a minute and sixty seconds", () => {
  assert.equal(took(119_700), "2 min 0 s");
});

test("turns follow priority, then age, and the longest wait is found whatever its turn", () => {
  const all = [["young", 0, "2026-01-01T11:00:00Z"], ["old", 0, "2026-01-01T01:00:00Z"], ["urgent", 5, "2026-01-01T12:00:00Z"]]
    .map(([name, priority, asked_at]) => ({ ...row(name, "waiting"), priority, asked_at }));
  assert.deepEqual([...turns(inTurn(all))], [["urgent", 1], ["old", 2], ["young", 3]]);
  assert.equal(longest(all).name, "old");
  assert.equal(age("2026-01-01T01:00:00Z", Date.parse("2026-01-01T03:30:00Z")), "2 h 30 min");
});

test("axes have round numbers, and the hours or days between them", () => {
  assert.deepEqual(ticks(16), [0, 10, 20]);
  assert.deepEqual(ticks(3.2), [0, 2, 4]);
  const day = Date.UTC(2026, 0, 1) / 1000;
  assert.ok(moments(day, day + 86400, 10).length >= 5);
  assert.ok(moments(day, day + 30 * 86400, 10).length <= 11);
  assert.deepEqual(stacked([[1, 2], [3, 4]]), [{ low: [0, 0], high: [1, 2] }, { low: [1, 2], high: [4, 6] }]);
});

test("charts show the teams of the filter, and those summed up only without one", () => {
  const picked = (...terms) => ["research", "batch", ""].filter((team) => picksTeam(terms, team));
  assert.deepEqual(picked({ key: "is", value: "idle" }), ["research", "batch", ""]);
  assert.deepEqual(picked({ key: "team", value: "r*" }), ["research"]);
  assert.deepEqual(picked({ key: "team", value: "r*", negated: true }), ["batch", ""]);
});

test("each team has a colour of its own while there are enough, one of last week, too", () => {
  const teams = ["a", "b", "c", "d", "e", "f", "g"];
  assert.equal(colour(teams), true);
  assert.equal(new Set([...teams, "gone"].map(assignHue)).size, 8);
  assert.equal(colour([...teams].reverse()), false);
  assert.equal(assignHue("c/pod"), assignHue("c"));
});
