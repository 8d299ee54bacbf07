/**
 * Light, dark, or as the system has it; remembered where the browser lets us.
 * @module
 */
const NAMES = ["system", "light", "dark"];
const KEY = "sluice-theme";

/** @param {HTMLButtonElement} button turns from one to the next */
export function themes(button) {
  let now = remembered();
  const use = () => {
    document.documentElement.dataset.theme = now;
    button.textContent = `Theme: ${now}`;
  };
  button.addEventListener("click", () => {
    now = NAMES[(NAMES.indexOf(now) + 1) % NAMES.length];
    try {
      localStorage.setItem(KEY, now);
    } catch {
      // A browser that stores nothing shows it for this visit.
    }
    use();
  });
  use();
}

function remembered() {
  try {
    const name = localStorage.getItem(KEY) ?? "";
    return NAMES.includes(name) ? name : NAMES[0];
  } catch {
    return NAMES[0];
  }
}
