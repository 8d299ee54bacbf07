import assert from "node:assert/strict";
import { test } from "node:test";
import { Store, nodeOf } from "../static/store.js";

const node = (name) => ({ node: name, state: "open" });
const gpu = (name, index) => ({ node: name, uuid: `U${index}`, index, units: 8 });
const rows = { "node/a": node("a"), "gpu/a/U1": gpu("a", 1), "gpu/a/U0": gpu("a", 0), fleet: { nodes: 1 } };

function whole(revision = 3) {
  const store = new Store();
  store.picture({ revision, first: true, complete: true, rows });
  return store;
}

test("the first picture shows part by part", () => {
  const store = new Store();
  assert.deepEqual(store.picture({ revision: 3, first: true, complete: false, rows: { "node/a": node("a") } }), ["node/a"]);
  assert.deepEqual(store.nodes(), ["a"]);
  assert.equal(store.complete, false);
  store.picture({ revision: 3, first: false, complete: true, rows: { "gpu/a/U0": gpu("a", 0) } });
  assert.equal(store.complete, true);
  assert.deepEqual(store.gpus("a").map((each) => each.uuid), ["U0"]);
});

test("GPUs stand in the order of their index, however they come", () => {
  assert.deepEqual(whole().gpus("a").map((each) => each.index), [0, 1]);
});

test("GPUs that are counted in another order stand in that order", () => {
  const store = whole();
  store.change({ revision: 4, rows: { "gpu/a/U0": { ...gpu("a", 2), uuid: "U0" } }, gone: [] });
  assert.deepEqual(store.gpus("a").map((each) => each.uuid), ["U1", "U0"]);
});

test("a change is taken in its turn, and says what it changed", () => {
  const store = whole();
  const keys = store.change({ revision: 4, rows: { "gpu/a/U0": { ...gpu("a", 0), in_use: 1 } }, gone: ["gpu/a/U1"] });
  assert.deepEqual(keys, ["gpu/a/U0", "gpu/a/U1"]);
  assert.deepEqual(store.gpus("a").map((each) => each.in_use), [1]);
  assert.equal(store.revision, 4);
});

test("a gap is noticed, and nothing of what follows it is shown", () => {
  const store = whole();
  assert.equal(store.change({ revision: 5, rows: { fleet: { nodes: 9 } }, gone: [] }), null);
  assert.equal(store.change({ revision: 3, rows: { fleet: { nodes: 9 } }, gone: [] }), null);
  assert.deepEqual(store.get("fleet"), { nodes: 1 });
});

test("a change before the picture is whole is a gap", () => {
  const store = new Store();
  store.picture({ revision: 3, first: true, complete: false, rows });
  assert.equal(store.change({ revision: 4, rows: {}, gone: [] }), null);
});

test("a second picture replaces what there was when it is whole, and names only what differs", () => {
  const store = whole();
  assert.deepEqual(store.picture({ revision: 9, first: true, complete: false, rows: { "node/a": node("a") } }), []);
  assert.equal(store.gpus("a").length, 2, "what there was still shows");
  const keys = store.picture({ revision: 9, first: false, complete: true, rows: { "gpu/a/U0": gpu("a", 0), "node/b": node("b") } });
  assert.deepEqual(keys.sort(), ["fleet", "gpu/a/U1", "node/b"]);
  assert.deepEqual(store.nodes().sort(), ["a", "b"]);
  assert.deepEqual(store.gpus("a").map((each) => each.uuid), ["U0"]);
  assert.notEqual(store.change({ revision: 10, rows: {}, gone: [] }), null);
});

test("a node that is gone takes its GPUs with it", () => {
  const store = whole();
  store.change({ revision: 4, rows: {}, gone: ["node/a", "gpu/a/U0", "gpu/a/U1"] });
  assert.deepEqual(store.nodes(), []);
  assert.deepEqual([...store.rows.keys()], ["fleet"]);
});

test("a row's node is found by its key, with any characters in it", () => {
  assert.equal(nodeOf("gpu/gpu-1.example/GPU-a"), "gpu-1.example");
  assert.equal(nodeOf("node/n"), "n");
  assert.equal(nodeOf("request/r"), undefined);
});
