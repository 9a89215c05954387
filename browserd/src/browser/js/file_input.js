// Whether the located element, or the control of a label, is a file input.
if (element.localName === "label" && element.control) element = element.control;
const isInput = element.localName === "input" && element.type === "file";
if (isInput && element.disabled) {
  return { error: "element_not_editable", message: "the file input is disabled" };
}
return { is_input: isInput, multiple: isInput && element.multiple };
