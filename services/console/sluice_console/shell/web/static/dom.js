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
 * Keep clicks on what is drawn again between press and release: the browser sends none, as the pressed element is gone,
 * so its successor under the pointer gets it.
 */
export function keepClicks() {
  /** @type {Element | null} */
  let pressed = null;
  addEventListener("pointerdown", (event) => {
    pressed = event.isPrimary && event.button === 0 ? /** @type {Element} */ (event.target) : null;
  }, true);
  addEventListener("pointerup", (event) => {
    const now = document.elementFromPoint(event.clientX, event.clientY);
    if (pressed && !pressed.isConnected && now && meant(pressed) === meant(now)) /** @type {HTMLElement} */ (now).click();
    pressed = null;
  }, true);
}

/** What a click there is about: a request, a GPU, or a button by its text. @param {Element} element */
function meant(element) {
  const found = /** @type {HTMLElement | null} */ (element.closest("[data-request], [data-key], button, a"));
  return found && JSON.stringify([found.tagName, found.dataset, found.matches("button, a") && found.textContent]);
}
