// What `navigate` answers. The status is the browser's own record of the document's response.
function () {
  const [entry] = performance.getEntriesByType("navigation");
  return { final_url: location.href, title: document.title, status: (entry && entry.responseStatus) || null };
}
