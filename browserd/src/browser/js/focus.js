// Prepares the located element for typing; with `replace` its content is selected, so that text replaces it.
const [replace] = given;
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
  if (replace) element.select();
  else try { element.setSelectionRange(element.value.length, element.value.length); } catch { /* no caret */ }
} else {
  const range = element.ownerDocument.createRange();
  range.selectNodeContents(element);
  if (!replace) range.collapse(false);
  const selection = element.ownerDocument.defaultView.getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}
return {};
