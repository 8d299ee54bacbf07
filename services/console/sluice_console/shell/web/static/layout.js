/**
 * Positions of nodes on the map in whole pixels, computed without the DOM, so that only visible nodes are drawn.
 * @module
 */

/** Pixels of each size of a GPU: least width, height with its gap, and the gap. */
export const SIZES = {
  l: { width: 250, height: 66, gap: 12 },
  m: { width: 150, height: 50, gap: 10 },
  s: { width: 82, height: 26, gap: 6 },
};
export const HEADING = 40;
export const LABEL = 232;
/** On a narrow screen a node's name is above its GPUs; in the smallest size it has one line. */
const LABEL_ABOVE = { l: 46, m: 46, s: 24 };
export const NARROW = 640;
export const PADDING = 14;

/**
 * The default size for a fleet.
 * @param {number} gpus
 * @returns {"l" | "m" | "s"}
 */
export function sizeFor(gpus) {
  if (gpus <= 24) return "l";
  return gpus <= 200 ? "m" : "s";
}

/**
 * How GPUs stand beside one another.
 * @param {number} width of the map, in pixels
 * @param {"l" | "m" | "s"} size
 */
export function grid(width, size) {
  const { width: least, height, gap } = SIZES[size];
  const narrow = width < NARROW;
  const room = Math.max(least, width - (narrow ? 2 * PADDING : LABEL + 2 * PADDING));
  let columns = Math.max(1, Math.floor((room + gap) / (least + gap)));
  // Nodes have 1, 2, 4, 8 or 16 GPUs: rows that are full are easier to read than ones that nearly are.
  if (columns >= 2) columns = 2 ** Math.floor(Math.log2(columns));
  const tile = Math.floor((room - (columns - 1) * gap) / columns);
  return { size, narrow, columns, tile: Math.min(tile, least * 2.2), height, gap };
}

/**
 * @typedef {{kind: "heading" | "node", name: string, top: number, height: number, count?: number}} Item
 * @param {{name: string, group: string, gpus: number}[]} nodes in the order in which they are shown
 * @param {ReturnType<typeof grid>} how
 * @returns {{items: Item[], height: number}}
 */
export function place(nodes, how) {
  /** @type {Item[]} */
  const items = [];
  let top = 0;
  let group = "";
  /** @type {Item | undefined} */
  let heading;
  for (const node of nodes) {
    if (node.group !== group) {
      group = node.group;
      heading = { kind: "heading", name: group, top, height: HEADING, count: 0 };
      items.push(heading);
      top += HEADING;
    }
    if (heading) heading.count = (heading.count ?? 0) + 1;
    const rows = Math.max(1, Math.ceil(node.gpus / how.columns));
    const height = rows * how.height + PADDING + (how.narrow ? LABEL_ABOVE[how.size] : 0);
    items.push({ kind: "node", name: node.name, top, height });
    top += height;
  }
  return { items, height: top };
}

/**
 * Under what an item is known in the document. A heading is another one when it counts others: it is drawn once.
 * @param {Item} item
 */
export function idOf(item) {
  return item.kind === "node" ? `node ${item.name}` : `heading ${item.count} ${item.name}`;
}

/**
 * The items that touch a stretch of the map: from the first to before the last.
 * @param {Item[]} items
 * @param {number} from
 * @param {number} to
 * @returns {[number, number]}
 */
export function inSight(items, from, to) {
  return [firstBelow(items, (item) => item.top + item.height > from), firstBelow(items, (item) => item.top >= to)];
}

/** @param {Item[]} items @param {(item: Item) => boolean} isBelow true from some item on */
function firstBelow(items, isBelow) {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isBelow(items[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}
