import assert from "node:assert/strict";
import { test } from "node:test";
import { memory } from "../static/bars.js";
import { memoryInUse } from "../static/head_view.js";
import { lasting, useText } from "../static/use_view.js";

const use = { profile: "1g.5gb", mode: "exclusive", memory_mib: 4864, memory_used_mib: 300, busy_percent: 57.4,
  sm_percent: 31.6, processes: 1, age_s: 3, idle_s: null };

test("what the driver does not report is not shown as zero", () => {
  assert.equal(useText(use), "1g.5gb: busy 57 %, 32 % of its SMs, 300 of 4864 MiB, 1 process");
  assert.equal(useText({ ...use, busy_percent: null, sm_percent: null, memory_used_mib: null, processes: 2 }),
    "1g.5gb: utilization unknown, ? of 4864 MiB, 2 processes");
  assert.equal(useText({ ...use, profile: null, mode: "mps", busy_percent: 0, sm_percent: null, idle_s: 8040 }),
    "mps on whole GPU: busy 0 %, 300 of 4864 MiB, 1 process, idle for 2 h 14 min");
});

test("unreported memory is not shown as 0 MiB", () => {
  assert.match(useText({ ...use, profile: null, memory_mib: 0, memory_used_mib: null }), /, \? of \? MiB,/);
  assert.deepEqual([0, 512, 4864].map(memory), ["unknown", "512 MiB", "5 GiB"]);
  assert.deepEqual(memoryInUse({ gpus: 2, memory_mib: 0 }), ["unknown", ""]);
  assert.deepEqual(memoryInUse({ gpus: 2, memory_mib: 40960, in_use_mib: 20480 }), ["50 %", "of 40 GiB"]);
  assert.deepEqual(memoryInUse({}), ["none", ""]);
});

test("an idle time has two units at most", () => {
  assert.deepEqual([4.9, 61, 3600, 320000].map(lasting), ["4 s", "1 min", "1 h 0 min", "3 d 16 h"]);
});
