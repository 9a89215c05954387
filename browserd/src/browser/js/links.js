// The links of the page, in document order, at most `limit`.
function (selector, limit) {
  let root = document;
  if (selector !== null) {
    try { root = document.querySelector(selector); } catch (error) {
      return { error: "invalid_selector", message: String(error.message) };
    }
    if (!root) return { error: "no_such_element", message: "no element matches " + selector };
  }
  const links = [];
  let truncated = false;
  function collect(root) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
    for (let node = walker.currentNode; node; node = walker.nextNode()) {
      if ((node.localName === "a" || node.localName === "area") && node.href) {
        if (links.length >= limit) { truncated = true; return; }
        const text = (node.innerText || node.getAttribute("aria-label") || node.title || "").trim().slice(0, 200);
        links.push({ url: String(node.href).slice(0, 4096), text: text.toWellFormed() });
      }
      if (node.shadowRoot) collect(node.shadowRoot);
      if (truncated) return;
    }
  }
  collect(root);
  return { links, truncated };
}
