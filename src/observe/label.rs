//! Enums whose variants are the values of a label.

/// Defines an enum with the text of each variant.
macro_rules! label {
    (
        $(#[$meta:meta])*
        $vis:vis enum $label:ident {
            $($(#[$doc:meta])* $value:ident = $text:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $label {
            $($(#[$doc])* $value,)+
        }

        impl $label {
            #[allow(dead_code, reason = "each feature needs a part")]
            /// All values, in the order of their numbers.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$value,)+];

            #[allow(dead_code, reason = "each feature needs a part")]
            /// The number of values.
            pub(crate) const COUNT: usize = Self::ALL.len();

            /// Returns the text of the label, as in metrics and events.
            #[must_use]
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }
        }

        impl std::fmt::Display for $label {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(super) use label;
