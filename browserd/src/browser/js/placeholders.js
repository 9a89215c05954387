// The elements whose placeholder contains (or, if `exact`, equals) the text.
function (text, exact) {
  const wanted = exact ? text : text.toLowerCase();
  const found = [];
  function look(root) {
    for (const element of root.querySelectorAll("[placeholder], [aria-placeholder], [data-placeholder]")) {
      const names = ["placeholder", "aria-placeholder", "data-placeholder"];
      const texts = names.map((name) => element.getAttribute(name) ?? "");
      const matches = (text) => exact ? text === wanted : text.toLowerCase().includes(wanted);
      if (texts.some((text) => text && matches(text)) && found.length < 1000) found.push(element);
    }
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      let inner = node.shadowRoot;
      if (!inner && (node.localName === "iframe" || node.localName === "frame")) {
        try { inner = node.contentDocument; } catch { inner = null; }
      }
      if (inner) look(inner);
    }
  }
  look(document);
  return found;
}
