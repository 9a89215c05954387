// Sets the value of the located form control.
const [wanted] = given;
if (element.localName === "label" && element.control) element = element.control;
const kind = element.localName === "input" ? element.type : element.localName;
const refuse = (message) => ({ error: "invalid_value", message });
if (element.disabled || element.readOnly) {
  return { error: "element_not_editable", message: "the control is disabled or read-only" };
}
element.focus({ preventScroll: true });
const changed = () => {
  element.dispatchEvent(new view.Event("input", { bubbles: true, composed: true }));
  element.dispatchEvent(new view.Event("change", { bubbles: true }));
};

if (kind === "select") {
  const texts = wanted.values ?? (wanted.value === null ? null : [wanted.value]);
  if (!texts) return refuse("a select has no checked state; give value or values");
  if (!element.multiple && texts.length !== 1) return refuse("this select has one value");
  const options = [...element.options];
  const plain = (text) => text.trim().replace(/\s+/g, " ");
  const chosen = [];
  for (const text of texts) {
    const option = options.find((option) => option.value === text)
      ?? options.find((option) => plain(option.label) === plain(text));
    if (!option) {
      const some = options.slice(0, 20).map((option) => JSON.stringify(plain(option.label).slice(0, 50)));
      return refuse("no option " + JSON.stringify(text.slice(0, 50)) + "; the select has " + some.join(", ")
        + (options.length > 20 ? ", …" : ""));
    }
    if (option.disabled || option.parentElement.disabled) return refuse("the option is disabled");
    chosen.push(option);
  }
  const before = options.map((option) => option.selected).join();
  if (element.multiple) for (const option of options) option.selected = chosen.includes(option);
  else element.selectedIndex = options.indexOf(chosen[0]);
  if (options.map((option) => option.selected).join() !== before) changed();
  return { value: element.value, values: [...element.selectedOptions].map((option) => option.value) };
}

const role = element.getAttribute("role");
const aria = ["checkbox", "radio", "switch", "menuitemcheckbox", "menuitemradio"].includes(role);
if (kind === "checkbox" || kind === "radio" || aria) {
  if (wanted.checked === null) return refuse("give checked");
  const native = kind === "checkbox" || kind === "radio";
  const state = () => native ? element.checked : element.getAttribute("aria-checked") === "true";
  if (!wanted.checked && (kind === "radio" || role === "radio" || role === "menuitemradio")) {
    if (state()) return refuse("a radio button is switched off by another one of its group");
  } else if (state() !== wanted.checked) {
    element.click();
    // A component may change its state a moment later.
    for (let tries = 0; tries < 20 && state() !== wanted.checked; tries++) {
      await new Promise((done) => setTimeout(done, 10));
    }
    if (state() !== wanted.checked) return refuse("the page did not change the control's state");
  }
  return { value: native ? element.value : "", checked: state() };
}

if (kind === "file") return { error: "element_not_editable", message: "files are given with upload" };
const plain = element.localName === "textarea"
  || (element.localName === "input" && !["button", "image", "reset", "submit"].includes(kind));
if (!plain) {
  const name = element.localName;
  return { error: "element_not_editable", message: "a <" + name + "> has no value; editable text is set with type and clear" };
}
if (wanted.value === null) return refuse("this control has one value; give value");
// Those of the class: frameworks replace the element's own.
const { get, set } = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(element), "value");
const value = () => get.call(element);
const before = value();
set.call(element, wanted.value);
const number = kind === "range" || kind === "number";
const kept = number ? Number(value()) === Number(wanted.value) && (value() === "") === (wanted.value === "")
  : value() !== "" || wanted.value === "";
if (!kept) {
  const has = value();
  set.call(element, before);
  return refuse("this input of type " + kind + " makes " + JSON.stringify(has) + " of the value");
}
if (value() !== before) changed();
return { value: value() };
