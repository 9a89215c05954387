// The page that every run loads: a document, a style sheet, a script and a picture.
import http from "node:http";

const [address, port] = process.argv.slice(2);
const parts = {
  "/": ["text/html", `<!doctype html><title>rendered</title><link rel=stylesheet href=style.css>
    <body><h1>One page</h1><img src=picture.svg width=80 height=80><script src=script.js></script>`],
  "/style.css": ["text/css", "body { font: 16px sans-serif; background: #eef } h1 { color: #046 }"],
  "/script.js": ["text/javascript", "document.body.append(Object.assign(document.createElement('p'), { textContent: 'scripted' }))"],
  "/picture.svg": ["image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'><circle cx='4' cy='4' r='3'/></svg>"],
};
http.createServer((request, answer) => {
  const [type, body] = parts[request.url] ?? [];
  answer.writeHead(body ? 200 : 404, { "Content-Type": type ?? "text/plain" });
  answer.end(body ?? "no such part");
}).listen(Number(port), address);
