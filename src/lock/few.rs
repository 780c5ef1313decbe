//! A list that is mostly empty.

use std::iter::Chain;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::{mem, option, slice, vec};

/// A list that mostly has at most one item, which needs no allocation. One comparison shows that it is empty.
#[derive(Debug, Default)]
pub(super) enum Few<T> {
    #[default]
    Empty,
    One(T),
    Several(Vec<T>),
}

impl<T> Few<T> {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Most lists get one item, so only that case is inline.
    #[inline]
    pub(super) fn push(&mut self, item: T) {
        if self.is_empty() {
            // An empty list needs no drop.
            let _empty = ManuallyDrop::new(mem::replace(self, Self::One(item)));
        } else {
            self.push_further(item);
        }
    }

    #[cold]
    fn push_further(&mut self, item: T) {
        match self {
            Self::Empty => *self = Self::One(item),
            Self::Several(items) => items.push(item),
            Self::One(_) => {
                let first = mem::take(self).into_iter();
                *self = Self::Several(first.chain([item]).collect());
            }
        }
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for item in mem::take(self) {
            if keep(&item) {
                self.push(item);
            }
        }
    }

    #[cfg(test)]
    #[track_caller]
    pub(super) fn remove(&mut self, at: usize) -> T {
        let mut items: Vec<_> = mem::take(self).into_iter().collect();
        let removed = items.remove(at);
        items.into_iter().for_each(|item| self.push(item));
        removed
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Empty => &[],
            Self::One(item) => slice::from_ref(item),
            Self::Several(items) => items,
        }
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = Chain<option::IntoIter<T>, vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, several) = match self {
            Self::Empty => (None, Vec::new()),
            Self::One(item) => (Some(item), Vec::new()),
            Self::Several(items) => (None, items),
        };
        one.into_iter().chain(several)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stay_in_order() {
        let mut few = Few::default();
        for count in 0..4 {
            assert_eq!((few.is_empty(), few.len()), (count == 0, count));
            few.push(count);
        }
        few.retain(|item| *item != 1);
        assert_eq!(*few, [0, 2, 3]);
        assert_eq!(few.remove(1), 2);
        assert!(few.into_iter().eq([0, 3]));
    }

    #[test]
    fn list_without_retained_items_is_empty() {
        let mut few = Few::Several(vec![1, 2]);
        few.retain(|_| false);
        assert!(few.is_empty());
    }
}
