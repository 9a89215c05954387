// Serializes the page (or one element) as HTML and stops after `limit` characters, so that the cost depends on the
// result and not on the page.
function (selector, limit) {
  let root = document;
  if (selector !== null) {
    try { root = document.querySelector(selector); } catch (error) {
      return { error: "invalid_selector", message: String(error.message) };
    }
    if (!root) return { error: "no_such_element", message: "no element matches " + selector };
  }
  const empty = new Set(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]);
  const raw = new Set(["script", "style", "xmp", "iframe", "noembed", "noframes", "plaintext"]);
  const parts = [];
  let length = 0;
  const full = () => length > limit;
  const put = (text) => { parts.push(text); length += text.length; };
  const cut = (text) => text.length > limit ? text.slice(0, limit + 1) : text;
  const escape = (text) => cut(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\u00a0/g, "&nbsp;");
  function children(node) {
    for (let child = node.firstChild; child && !full(); child = child.nextSibling) write(child);
  }
  function write(node) {
    if (full()) return;
    switch (node.nodeType) {
      case 1: {
        const name = node.localName;
        put("<" + name);
        for (const { name, value } of node.attributes) {
          put(" " + name + "=\"" + cut(value).replace(/&/g, "&amp;").replace(/"/g, "&quot;") + "\"");
          if (full()) return;
        }
        put(">");
        if (empty.has(name)) return;
        if (node.shadowRoot) {
          put("<template shadowrootmode=\"open\">");
          children(node.shadowRoot);
          put("</template>");
        }
        if (name === "iframe" || name === "frame") {
          let inner = null;
          try { inner = node.contentDocument; } catch { /* cross-origin */ }
          if (inner) children(inner);
        } else {
          children(name === "template" ? node.content : node);
        }
        if (!full()) put("</" + name + ">");
        return;
      }
      case 3: put(raw.has(node.parentNode && node.parentNode.localName) ? cut(node.data) : escape(node.data)); return;
      case 8: put("<!--" + cut(node.data) + "-->"); return;
      case 9: children(node); return;
      case 10: put("<!DOCTYPE " + node.name + ">"); return;
    }
  }
  write(root);
  const html = parts.join("");
  return { html: html.slice(0, limit).toWellFormed(), truncated: html.length > limit };
}
