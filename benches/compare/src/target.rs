//! The targets of tower-lock, as the README lists them. A row lists those that its figures miss.

#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A figure and its bound.
#[derive(Debug)]
pub(crate) struct Target {
    name: &'static str,
    value: f64,
    bound: Bound,
    decimals: usize,
}

impl Target {
    /// Creates a target whose bound is printed with this many decimals.
    pub(crate) fn at_least(name: &'static str, value: f64, least: f64, decimals: usize) -> Self {
        Self {
            name,
            value,
            bound: Bound::AtLeast(least),
            decimals,
        }
    }

    /// Creates a target whose bound is printed with this many decimals.
    pub(crate) fn at_most(name: &'static str, value: f64, most: f64, decimals: usize) -> Self {
        Self {
            name,
            value,
            bound: Bound::AtMost(most),
            decimals,
        }
    }

    /// Returns the name and the bound, unless the value meets it. A value that is no number meets none.
    fn missed(&self) -> Option<String> {
        let Self {
            name,
            value,
            bound,
            decimals,
        } = *self;
        let (is_met, sign, bound) = match bound {
            Bound::AtLeast(least) => (value >= least, '≥', least),
            Bound::AtMost(most) => (value <= most, '≤', most),
        };
        (!is_met).then(|| format!("{name} {sign} {bound:.decimals$}"))
    }
}

/// Returns a note that begins with the missed targets, if there are any.
pub(crate) fn note(targets: &[Target], rest: String) -> String {
    let missed: Vec<_> = targets.iter().filter_map(Target::missed).collect();
    let missed = match missed.is_empty() {
        true => String::new(),
        false => format!("**missed: {}**", missed.join(", ")),
    };
    let parts = [missed, rest].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_lists_missed_targets_first() {
        let targets = [
            Target::at_least("shares", 0.79, 0.8, 1),
            Target::at_least("grants", 0.8, 0.8, 1),
            Target::at_most("waits", 50.0, 50.0, 0),
            Target::at_most("scripts", 3.6, 3.5, 1),
        ];
        let missed = "**missed: shares ≥ 0.8, scripts ≤ 3.5**";
        assert_eq!(note(&targets, String::new()), missed);
        assert_eq!(note(&targets, "p50".to_owned()), format!("{missed}; p50"));
        assert_eq!(note(&targets[1..3], "p50".to_owned()), "p50");
    }

    #[test]
    fn missing_number_meets_no_target() {
        let targets = [
            Target::at_least("a", f64::NAN, 1.0, 0),
            Target::at_most("b", f64::NAN, 1.0, 0),
        ];
        assert_eq!(note(&targets, String::new()), "**missed: a ≥ 1, b ≤ 1**");
    }
}
