//! The page: one document without external assets.

/// The style and the script, whose hashes the content security policy names.
pub(super) const STYLE: &str = include_str!("page/style.css");
pub(super) const SCRIPT: &str = include_str!("page/script.js");

/// The whole document.
pub(super) const PAGE: &str = concat!(
    include_str!("page/head.html"),
    "<style>",
    include_str!("page/style.css"),
    "</style>\n",
    include_str!("page/body.html"),
    "<script>",
    include_str!("page/script.js"),
    "</script>\n</html>\n",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_small() {
        assert!(PAGE.len() <= 40 * 1024, "{} bytes", PAGE.len());
    }

    /// The browser hashes the text between the tags.
    #[test]
    fn page_contains_hashed_text_once() {
        for (tag, text) in [("style", STYLE), ("script", SCRIPT)] {
            assert!(PAGE.contains(&format!("<{tag}>{text}</{tag}>")), "{tag}");
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1, "{tag}");
            // HTML parsers replace carriage returns.
            assert!(!text.contains('\r'), "{tag}");
        }
    }

    #[test]
    fn page_has_no_external_asset() {
        for name in [
            "src=",
            "@import",
            "url(",
            "innerHTML",
            "style=",
            "http://",
            "https://",
        ] {
            assert!(
                !PAGE
                    .replace("http://www.w3.org/2000/svg", "")
                    .contains(name),
                "{name}"
            );
        }
    }
}
