// Finds an element (by selector, or `this` if the selector is null) and prepares it:
// "point" scrolls it into view and returns the centre of its visible part,
// "focus" prepares it for typing ("replace" also selects its content).
function (selector, purpose) {
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
  const invisible = { error: "element_not_visible", message: "the element has no visible box" };

  if (purpose !== "point") {
    const plain = element.localName === "textarea" || (element.localName === "input" &&
      !["button", "checkbox", "color", "file", "hidden", "image", "radio", "range", "reset", "submit"].includes(element.type));
    if (!(plain && !element.disabled && !element.readOnly) && !element.isContentEditable) {
      return { error: "element_not_editable", message: "text cannot be typed into this <" + element.localName + ">" };
    }
    element.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    element.focus();
    let active = document.activeElement;
    while (active && active !== element) {
      let inner = active.shadowRoot;
      if (!inner) { try { inner = active.contentDocument; } catch { inner = null; } }
      active = inner && inner.activeElement;
    }
    if (active !== element && element.ownerDocument.activeElement !== element &&
        !(element.getRootNode().activeElement === element) && !element.isContentEditable) return invisible;
    if (plain) {
      if (purpose === "replace") element.select();
      else try { element.setSelectionRange(element.value.length, element.value.length); } catch { /* no caret */ }
    } else {
      const range = element.ownerDocument.createRange();
      range.selectNodeContents(element);
      if (purpose !== "replace") range.collapse(false);
      const selection = element.ownerDocument.defaultView.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
    }
    return {};
  }

  const view = element.ownerDocument.defaultView;
  function visiblePart() {
    for (const box of element.getClientRects()) {
      const left = Math.max(box.left, 0), right = Math.min(box.right, view.innerWidth);
      const top = Math.max(box.top, 0), bottom = Math.min(box.bottom, view.innerHeight);
      if (right - left >= 1 && bottom - top >= 1) return { x: (left + right) / 2, y: (top + bottom) / 2 };
    }
    return null;
  }
  function isHit(point) {
    const hit = point && element.getRootNode().elementFromPoint(point.x, point.y);
    return hit && (hit === element || element.contains(hit) || hit.contains(element));
  }
  const style = view.getComputedStyle(element);
  if (style.visibility !== "visible" || element.getClientRects().length === 0) return invisible;
  let point = visiblePart();
  if (!isHit(point) || view !== view.top) {
    element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    point = visiblePart();
  }
  if (!point) return invisible;
  for (let frame = view.frameElement; frame; frame = frame.ownerDocument.defaultView.frameElement) {
    const box = frame.getBoundingClientRect();
    point.x += box.left + frame.clientLeft;
    point.y += box.top + frame.clientTop;
  }
  return point;
}
