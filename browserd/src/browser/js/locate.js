// Finds the element by selector (`this` if the selector is null). A part of a function (selector, ...given).
function find(root) {
  const hit = root.querySelector(selector);
  if (hit) return hit;
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    let inner = node.shadowRoot;
    if (!inner && (node.localName === "iframe" || node.localName === "frame")) {
      try { inner = node.contentDocument; } catch { inner = null; }
    }
    const deep = inner && find(inner);
    if (deep) return deep;
  }
  return null;
}

let element = this;
if (selector !== null) {
  try { element = find(document); } catch (error) {
    return { error: "invalid_selector", message: String(error.message) };
  }
  if (!element) return { error: "no_such_element", message: "no element matches " + selector };
}
if (!element.isConnected) return { error: "stale_ref", message: "the element is no longer in the page" };
if (element.nodeType !== 1) element = element.parentElement;
const view = element.ownerDocument.defaultView;
const invisible = { error: "element_not_visible", message: "the element has no visible box" };
