//! Refs: short names for elements of a tab's document.

use crate::cdp::Session;
use std::collections::HashMap;

/// Maximum number of elements with a ref. Above it, earlier refs become stale.
const MAX_REFS: usize = 100_000;

/// An element, as Chromium names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Element {
    pub(crate) session: Session,
    pub(crate) backend_node: i64,
}

/// The refs of a tab. An element keeps its ref, so that refs of several snapshots can be used together.
#[derive(Debug, Default)]
pub(crate) struct Refs {
    /// The number of the first element, minus one.
    before: u32,
    elements: Vec<Element>,
    numbers: HashMap<Element, u32>,
}

impl Refs {
    /// The ref of the element, for example `@e1`.
    pub(crate) fn of(&mut self, element: Element) -> String {
        if let Some(number) = self.numbers.get(&element) {
            return format!("@e{number}");
        }
        if self.elements.len() >= MAX_REFS {
            self.before += self.elements.len() as u32;
            self.elements.clear();
            self.numbers.clear();
        }
        self.elements.push(element.clone());
        let number = self.before + self.elements.len() as u32;
        self.numbers.insert(element, number);
        format!("@e{number}")
    }

    /// The element of the ref with this number.
    pub(crate) fn element(&self, number: u32) -> Option<Element> {
        let at = number.checked_sub(self.before)?.checked_sub(1)?;
        self.elements.get(at as usize).cloned()
    }

    /// Forgets all refs, because the document was replaced.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_keeps_its_ref_and_old_refs_are_never_given_to_another() {
        let element = |backend_node| Element { session: "s".into(), backend_node };
        let mut refs = Refs::default();
        assert_eq!(refs.of(element(7)), "@e1");
        assert_eq!(refs.of(element(8)), "@e2");
        assert_eq!(refs.of(element(7)), "@e1");
        let other = Element { session: "other".into(), backend_node: 7 };
        assert_eq!(refs.of(other.clone()), "@e3", "another process may use the same number");
        assert_eq!(refs.element(3), Some(other));
        assert_eq!((refs.element(0), refs.element(4)), (None, None));
        for node in 0..MAX_REFS as i64 {
            refs.of(element(1000 + node));
        }
        assert_eq!(refs.element(1), None, "stale, not another element");
        let last = refs.of(element(1000 + MAX_REFS as i64 - 1));
        assert_eq!(last, format!("@e{}", MAX_REFS + 3));
        assert_eq!(refs.element(MAX_REFS as u32 + 3), Some(element(1000 + MAX_REFS as i64 - 1)));
    }
}
