// Whether a visible element matches the selector, and whether the visible text contains the text. `null`: not asked.
function (selector, text) {
  const plain = (text) => text.replace(/\s+/g, " ").toLowerCase();
  const wanted = text === null ? "" : plain(text).trim();
  let element = false, contains = false;
  const visible = (element) => element.getClientRects().length > 0
    && element.ownerDocument.defaultView.getComputedStyle(element).visibility === "visible";
  function look(root) {
    if (selector !== null && !element) element = [...root.querySelectorAll(selector)].some(visible);
    if (text !== null && !contains) {
      const tops = root.nodeType === 9 ? [root.body ?? root.documentElement] : [...root.children];
      contains = tops.some((top) => top && plain(top.innerText ?? top.textContent).includes(wanted));
    }
    if ((selector === null || element) && (text === null || contains)) return;
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      let inner = node.shadowRoot;
      if (!inner && (node.localName === "iframe" || node.localName === "frame") && visible(node)) {
        try { inner = node.contentDocument; } catch { inner = null; }
      }
      if (inner) look(inner);
    }
  }
  try { look(document); } catch (error) {
    return { error: "invalid_selector", message: String(error.message) };
  }
  return { element, contains };
}
