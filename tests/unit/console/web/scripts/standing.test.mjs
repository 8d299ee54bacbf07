import assert from "node:assert/strict";
import { test } from "node:test";
import { clock } from "../static/head_view.js";

test("a time of another day is not taken for one of today", () => {
  const now = new Date(2026, 10, 22, 10, 0, 0);
  assert.equal(clock(new Date(2026, 10, 22, 9, 59, 1), now), "09:59:01");
  assert.equal(clock(new Date(2026, 10, 19, 9, 59, 1), now), "19 Nov 2026, 09:59:01");
  assert.equal(clock(new Date("what"), now), "a while ago");
});
