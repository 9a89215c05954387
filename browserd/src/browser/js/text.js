// The visible text, truncated to `limit` characters.
function (selector, limit) {
  let root = document.body || document.documentElement;
  if (selector !== null) {
    try { root = document.querySelector(selector); } catch (error) {
      return { error: "invalid_selector", message: String(error.message) };
    }
    if (!root) return { error: "no_such_element", message: "no element matches " + selector };
  }
  const text = root ? (root.innerText === undefined ? root.textContent : root.innerText) : "";
  return { text: text.slice(0, limit).toWellFormed(), truncated: text.length > limit };
}
