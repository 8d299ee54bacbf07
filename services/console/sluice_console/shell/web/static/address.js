/**
 * What a person has chosen, kept in the address, so that it can be passed on and survives a reload.
 * @module
 */

/** @param {string} name @returns {string} empty if it is not there */
export function chosen(name) {
  return new URLSearchParams(location.search).get(name) ?? "";
}

/** Replaces values; empty ones are left out. @param {Record<string, string>} changes */
export function keep(changes) {
  const values = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) values.set(name, value);
    else values.delete(name);
  }
  const query = values.toString().replaceAll("%3A", ":").replaceAll("%2F", "/");
  history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${location.hash}`);
}
