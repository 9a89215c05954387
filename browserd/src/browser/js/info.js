// The result of `navigate`. The HTTP status comes from the browser's performance entry of the document.
function () {
  const [entry] = performance.getEntriesByType("navigation");
  return { final_url: location.href, title: document.title, status: (entry && entry.responseStatus) || null };
}
