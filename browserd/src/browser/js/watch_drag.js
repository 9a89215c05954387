// Notices whether the page starts to drag an element. `browserdDrag` is visible only to browserd's scripts.
function () {
  if (globalThis.browserdDrag === undefined) {
    // Whether the page prevents it is known after its own listeners have run.
    addEventListener("dragstart", (event) => setTimeout(() => { globalThis.browserdDrag = !event.defaultPrevented; }), true);
  }
  globalThis.browserdDrag = false;
}
