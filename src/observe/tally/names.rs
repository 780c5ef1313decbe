//! The names of layers.

use std::sync::OnceLock;

/// The most names of one manager. Each one has about 120 time series.
const MOST: usize = 32;

/// The number of a layer's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Name(u8);

impl Name {
    /// The acquire has no name.
    pub(crate) const NONE: Self = Self(0);

    /// All names beyond the limit.
    pub(crate) const OTHER: Self = Self(MOST as u8 + 1);

    pub(crate) const COUNT: usize = MOST + 2;

    pub(crate) fn number(self) -> usize {
        self.0.into()
    }
}

/// The names that the program has used, in the order of their first use.
#[derive(Debug)]
pub(super) struct Names {
    names: [OnceLock<Box<str>>; MOST],
}

impl Default for Names {
    fn default() -> Self {
        Self {
            names: [const { OnceLock::new() }; MOST],
        }
    }
}

impl Names {
    /// Returns the number of a name, or that of `other` if there are too many. Calls `added` if the name is new.
    pub(super) fn number(&self, name: &str, added: impl FnOnce()) -> Name {
        if name.is_empty() {
            return Name::NONE;
        }
        let mut is_new = false;
        let new = |is_new: &mut bool| {
            *is_new = true;
            name.into()
        };
        let mut slots = self.names.iter();
        let found = slots.position(|slot| **slot.get_or_init(|| new(&mut is_new)) == *name);
        if is_new {
            added();
        }
        // At most `MOST`, which fits.
        found.map_or(Name::OTHER, |at| Name(at as u8 + 1))
    }

    /// Returns the text of a number, or `None` without a name.
    pub(super) fn text(&self, name: Name) -> Option<&str> {
        match name {
            Name::NONE => None,
            Name::OTHER => Some("other"),
            Name(number) => self.names[usize::from(number) - 1]
                .get()
                .map(|name| &**name),
        }
    }

    /// Returns the numbers of the names that are in use, and that of acquires without a name.
    pub(super) fn all(&self) -> impl Iterator<Item = Name> {
        let known = self.names.iter().take_while(|slot| slot.get().is_some());
        (0..=known.count() as u8).map(Name).chain([Name::OTHER])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_keeps_its_number() {
        let names = Names::default();
        let number = |name| {
            let mut is_new = false;
            let number = names.number(name, || is_new = true);
            (number, is_new)
        };
        let ((a, true), (b, true)) = (number("a"), number("b")) else {
            panic!("new names");
        };
        assert_ne!(a, b);
        assert_eq!((number("a"), number("b")), ((a, false), (b, false)));
        assert_eq!((names.text(a), names.text(b)), (Some("a"), Some("b")));
        assert_eq!(number(""), (Name::NONE, false));
        assert_eq!(names.text(Name::NONE), None);
    }

    #[test]
    fn name_beyond_limit_is_other() {
        let names = Names::default();
        let numbers: Vec<_> = (0..40)
            .map(|n| names.number(&n.to_string(), || {}))
            .collect();
        assert_eq!(names.text(numbers[31]), Some("31"));
        for number in &numbers[32..] {
            assert_eq!(names.text(*number), Some("other"));
        }
        assert_eq!(names.all().count(), Name::COUNT);
    }
}
