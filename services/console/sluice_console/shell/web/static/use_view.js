/**
 * Usage of a pod's slices, a line each.
 * @module
 *
 * @typedef {{profile: string | null, mode: string, memory_mib: number, memory_used_mib: number | null,
 *   busy_percent: number | null, sm_percent: number | null, processes: number, age_s: number | null,
 *   idle_s: number | null}} Use
 */
import { make } from "./dom.js";

/**
 * @param {{slices: Use[]}} usage
 * @returns {HTMLElement[]} nothing where nothing is known
 */
export function uses(usage) {
  const known = usage.slices.filter((each) => each.age_s !== null);
  if (known.length === 0) return [];
  return [make("h3", {}, "Use"), make("ul", { class: "uses" }, ...known.map((each) => make("li", {}, useText(each))))];
}

/** One slice: `1g.5gb: busy 57 %, 300 of 4864 MiB, 1 process`. @param {Use} each */
export function useText(each) {
  const parts = [each.busy_percent === null ? "utilization unknown" : `busy ${Math.round(each.busy_percent)} %`];
  if (each.sm_percent !== null) parts.push(`${Math.round(each.sm_percent)} % of its SMs`);
  parts.push(`${each.memory_used_mib === null ? "?" : each.memory_used_mib} of ${each.memory_mib || "?"} MiB`);
  parts.push(each.processes === 1 ? "1 process" : `${each.processes} processes`);
  if (each.idle_s !== null) parts.push(`idle for ${lasting(each.idle_s)}`);
  const what = each.profile ?? "whole GPU";
  return `${each.mode === "exclusive" ? what : `${each.mode} on ${what}`}: ${parts.join(", ")}`;
}

/** @param {number} s seconds */
export function lasting(s) {
  const minutes = Math.floor(s / 60);
  if (minutes < 1) return `${Math.floor(s)} s`;
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
