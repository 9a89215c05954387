//! Netlink attributes: length, type, value, padded to four bytes.

/// Set in the type of an attribute that consists of attributes.
pub const NLA_F_NESTED: u16 = 0x8000;
/// `NLA_TYPE_MASK`: without the flags for nesting and byte order.
const TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 4;

/// A sequence of attributes, in the kernel's format.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attributes(pub Vec<u8>);

impl Attributes {
    /// Append an attribute.
    pub fn bytes(&mut self, id: u16, value: &[u8]) {
        let length = u16::try_from(value.len() + HEADER).expect("an attribute is far below 64 KiB");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(id.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Append a text with its terminating NUL.
    pub fn text(&mut self, id: u16, value: &str) {
        self.bytes(id, &[value.as_bytes(), &[0]].concat());
    }

    /// Append an attribute that consists of attributes.
    pub fn nested(&mut self, id: u16, fill: impl FnOnce(&mut Attributes)) {
        let mut inner = Attributes::default();
        fill(&mut inner);
        self.bytes(id | NLA_F_NESTED, &inner.0);
    }

    /// Type and value of each attribute.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let mut rest = self.0.as_slice();
        // Ends at the first attribute that does not fit: the kernel never sends one.
        std::iter::from_fn(move || {
            let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
            let id = u16::from_ne_bytes(rest.get(2..HEADER)?.try_into().ok()?) & TYPE_MASK;
            let value = rest.get(HEADER..length)?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some((id, value))
        })
    }

    /// The value of the first attribute of this type.
    pub fn get(&self, id: u16) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == id).map(|(_, value)| value)
    }

    /// The attributes in the first attribute of this type.
    pub fn get_nested(&self, id: u16) -> Option<Attributes> {
        self.get(id).map(|value| Attributes(value.to_vec()))
    }

    /// A text without its terminating NUL.
    pub fn get_text(&self, id: u16) -> Option<String> {
        let value = self.get(id)?;
        Some(String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let mut attributes = Attributes::default();
        attributes.text(1, "hostd");
        attributes.nested(2, |inner| inner.bytes(7, &[1, 2, 3, 4]));
        attributes.bytes(3, &[9]);
        assert_eq!(attributes.0.len() % 4, 0);
        assert_eq!(attributes.get_text(1).as_deref(), Some("hostd"));
        assert_eq!(attributes.get_nested(2).unwrap().get(7), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attributes.get(3), Some(&[9][..]));
        assert_eq!(attributes.get(4), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Attributes(bytes.clone()).iter().count() <= bytes.len());
        }
    }
}
