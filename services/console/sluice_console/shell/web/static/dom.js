/**
 * Creates elements. Text stays text: nothing on the page parses HTML from a string.
 * @module
 */

/**
 * @param {string} tag
 * @param {Record<string, string | number | boolean | ((event: any) => void) | undefined>} [properties]
 *   `class`, `data-*`, `aria-*` and `role` become attributes, `on*` listeners, everything else properties.
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {HTMLElement}
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (/^(class|role|data-.*|aria-.*|for|tabindex|title|href|target|rel|datetime)$/.test(name)) {
      element.setAttribute(name, String(value));
    } else /** @type {any} */ (element)[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return element;
}

/**
 * An element of a drawing. All properties become attributes.
 * @param {string} tag
 * @param {Record<string, string | number>} properties
 * @param {...(Node | string)} children
 */
export function draw(tag, properties, ...children) {
  const space = document.querySelector("svg")?.namespaceURI ?? "";
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** @param {string} url @returns {Promise<any>} the document, or `{error}` in words */
export async function ask(url) {
  try {
    const answer = await fetch(url, { headers: { accept: "application/json" } });
    return await answer.json();
  } catch {
    return { error: "The page's server does not answer." };
  }
}

/**
 * @param {string} id
 * @returns {any} The element of the page's own markup.
 */
export function at(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * Put elements into a list in this order. Those that stay are not touched: they keep the focus, and what they cost.
 * @param {HTMLElement} list @param {HTMLElement[]} elements
 */
export function arrange(list, elements) {
  const stay = new Set(elements);
  for (const child of [...list.children]) if (!stay.has(/** @type {HTMLElement} */ (child))) child.remove();
  let next = list.firstElementChild;
  for (const element of elements) {
    if (element === next) next = next.nextElementSibling;
    else list.insertBefore(element, next);
  }
}

/**
 * Keep clicks of a mouse on what is drawn again between press and release: most browsers send none where the pressed
 * element is gone, so its successor under the pointer gets it. A finger's click goes to what is there at the end.
 */
export function keepClicks() {
  /** @type {Element | null} */
  let pressed = null;
  /** @type {HTMLElement | null} */
  let before = null;
  /** @type {HTMLElement | null} */
  let owed = null;
  addEventListener("pointerdown", (event) => {
    pressed = event.pointerType === "mouse" && event.button === 0 ? /** @type {Element} */ (event.target) : null;
    before = taker(pressed);
  }, true);
  addEventListener("pointerup", (event) => {
    const now = pressed?.isConnected === false ? taker(document.elementFromPoint(event.clientX, event.clientY)) : null;
    owed = now && before && (now === before || topic(now) === topic(before)) ? now : null;
    pressed = null;
    setTimeout(() => owed?.dispatchEvent(new MouseEvent("click", event)));
  }, true);
  addEventListener("click", (event) => {
    if (taker(/** @type {Element} */ (event.target)) === owed) owed = null;
  }, true);
}

/** What takes a click there. @param {Element | null} element @returns {HTMLElement | null} */
function taker(element) {
  return element?.closest("[data-request], [data-key], button, a") ?? null;
}

/** What it is about: its data, as its text may change, or else its text. @param {HTMLElement} element */
function topic(element) {
  const data = Object.entries(element.dataset);
  return JSON.stringify([element.tagName, data.length ? data : element.textContent]);
}
