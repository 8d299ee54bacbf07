import assert from "node:assert/strict";
import { test } from "node:test";
import { described, assignHue, kindOf, named, segments } from "../static/bars.js";

const gpu = (...places) => ({ node: "n", uuid: "U", index: 0, model: "NVIDIA A100", memory_mib: 8000, units: 8, mig: true, places });
const place = (start, size, more = {}) => ({ start, size, state: "ready", profile: `${size}g`, owner: "team/pod", request: "r", ...more });

test("what is free stands between what is taken, and every unit is somewhere", () => {
  const found = segments(gpu(place(6, 1), place(1, 2)));
  assert.deepEqual(found.map((each) => [each.start, each.size, each.kind]), [
    [0, 1, "free"], [1, 2, "ready"], [3, 3, "free"], [6, 1, "ready"], [7, 1, "free"],
  ]);
});

test("an empty GPU is one free stretch", () => {
  assert.deepEqual(segments(gpu()).map((each) => [each.start, each.size, each.kind]), [[0, 8, "free"]]);
});

test("what overlaps or sticks out is drawn once and inside", () => {
  const found = segments(gpu(place(0, 4), place(2, 2, { state: "making" }), place(6, 9), place(9, 1)));
  assert.deepEqual(found.map((each) => [each.start, each.size, each.kind]), [[0, 4, "ready"], [4, 2, "free"], [6, 2, "ready"]]);
});

test("shares have their part of the home's memory, and never more than all of it", () => {
  const share = (memory_mib) => ({ owner: "team/x", request: "r", state: "ready", memory_mib });
  const [home] = segments(gpu(place(0, 8, { shares: [share(2000), share(1000)] })));
  assert.equal(home.kind, "shared");
  assert.deepEqual(home.shares.map((each) => each.part), [0.25, 0.125]);
  const [over] = segments(gpu(place(0, 8, { shares: [share(8000), share(8000)] })));
  assert.deepEqual(over.shares.map((each) => each.part), [0.5, 0.5]);
});

test("every state has words and a kind of its own, so that no colour alone says it", () => {
  const kinds = ["ready", "making", "ending", "quarantined", "foreign", "unusable"].map((state) => kindOf(place(0, 1, { state })));
  assert.equal(new Set(kinds).size, kinds.length);
  assert.equal(kindOf(place(0, 1, { state: "free" })), "offered");
  assert.equal(kindOf(place(0, 1, { out_of_use: true })), "quarantined");
  assert.equal(kindOf(place(0, 1, { ill: true })), "quarantined");
  const [making] = segments(gpu(place(0, 8, { state: "making" })));
  assert.match(making.label, /^… pod$/);
  assert.match(making.title, /team\/pod · 8g at 0 · being created/);
});

test("a GPU is called by what is seen of it, then by what is not, and described by what is on it", () => {
  const half = { ...gpu(place(0, 4)), in_use: 0.5, fits: { "1g": 3 }, trouble: "unhealthy: Xid 79" };
  assert.equal(named(half, "0  50 %  pod "), "GPU 0 50 % pod, on n, A100. unhealthy: Xid 79. fits 3×1g");
  assert.equal(named(half, "0 50 % fits 3×1g pod"), "GPU 0 50 % fits 3×1g pod, on n, A100. unhealthy: Xid 79");
  assert.equal(named(gpu(), "0 "), "GPU 0, on n, A100. 0 % in use. nothing more fits");
  assert.equal(described(half, new Map([["r", 9]])), "team/pod · 4g at 0 · in use · idle");
  assert.equal(described(gpu(), new Map()), "nothing is on it");
});

test("a namespace keeps its colour", () => {
  assert.equal(assignHue("team/a"), assignHue("team/b"));
  const hues = new Set(Array.from({ length: 64 }, (_, n) => assignHue(`namespace-${n}/x`)));
  assert.equal(hues.size, 8);
});
