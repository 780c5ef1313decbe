//! A list that is mostly empty.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::{mem, slice};

/// A list that mostly has at most one item, which needs no allocation. One comparison shows that it is empty.
#[derive(Debug, Default)]
pub(crate) enum Few<T> {
    #[default]
    Empty,
    One(T),
    Several(Vec<T>),
}

impl<T> Few<T> {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Most lists get one item, so only that case is inline.
    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        if self.is_empty() {
            // An empty list needs no drop.
            let _empty = ManuallyDrop::new(mem::replace(self, Self::One(item)));
        } else {
            self.push_further(item);
        }
    }

    #[cold]
    fn push_further(&mut self, item: T) {
        *self = match mem::take(self) {
            Self::Empty => Self::One(item),
            Self::One(first) => Self::Several(vec![first, item]),
            Self::Several(mut items) => {
                items.push(item);
                Self::Several(items)
            }
        };
    }

    #[cfg(test)]
    #[track_caller]
    pub(crate) fn remove(&mut self, at: usize) -> T {
        match mem::take(self) {
            Self::Several(mut items) => {
                let removed = items.remove(at);
                items.into_iter().for_each(|item| self.push(item));
                removed
            }
            Self::One(item) if at == 0 => item,
            Self::Empty | Self::One(_) => panic!("no item {at}"),
        }
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
        assert_eq!(few.remove(1), 1);
        assert_eq!(*few, [0, 2, 3]);
    }
}
