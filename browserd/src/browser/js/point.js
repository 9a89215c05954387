// Scrolls the located element into view and returns the centre of its visible part.
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
