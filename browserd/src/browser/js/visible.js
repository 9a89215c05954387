// Whether the located element is visible.
return element.getClientRects().length > 0 && view.getComputedStyle(element).visibility === "visible";
