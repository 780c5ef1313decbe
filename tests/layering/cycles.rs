//! Import cycles between files. A file that only declares and re-exports modules is no part of
//! one: a path through it leads to the file that defines the item.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::source::{Exports, Named, Segments, Source};

/// Which file names an item of which other files.
pub(crate) struct Imports {
    edges: BTreeMap<Segments, BTreeSet<Segments>>,
}

impl Imports {
    pub(crate) fn of(sources: &[Source]) -> Self {
        let exports = Exports::of(sources);
        let modules = sources.iter().map(|source| source.module.clone()).collect();
        let files = sources
            .iter()
            .filter(|source| !source.is_test() && !source.only_re_exports());
        let mut edges: BTreeMap<_, _> = files
            .map(|file| (file.module.clone(), named_modules(file, &exports, &modules)))
            .collect();
        let files: BTreeSet<_> = edges.keys().cloned().collect();
        for (file, named) in &mut edges {
            named.retain(|other| other != file && files.contains(other));
        }
        Self { edges }
    }

    /// Returns every largest group of files in which each file reaches all others.
    pub(crate) fn cycles(&self) -> Vec<Cycle<'_>> {
        let reachable: BTreeMap<_, _> = self
            .edges
            .keys()
            .map(|file| (file, self.reachable(file)))
            .collect();
        let groups: BTreeSet<BTreeSet<_>> = reachable
            .iter()
            .map(|(file, reached)| {
                let back = |other: &&Segments| reachable[*other].contains(file);
                reached.iter().copied().filter(back).collect()
            })
            .filter(|group: &BTreeSet<_>| !group.is_empty())
            .collect();
        let cycle = |files| Cycle {
            files,
            imports: self,
        };
        groups.into_iter().map(cycle).collect()
    }

    /// Returns the files that `file` names, directly or through others.
    fn reachable(&self, file: &Segments) -> BTreeSet<&Segments> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<_> = self.edges[file].iter().collect();
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(&self.edges[next]);
            }
        }
        reached
    }
}

/// Files that all reach each other.
pub(crate) struct Cycle<'a> {
    pub(crate) files: BTreeSet<&'a Segments>,
    imports: &'a Imports,
}

impl Cycle<'_> {
    /// Returns the sorted paths of the files.
    pub(crate) fn names(&self) -> Vec<String> {
        self.files.iter().map(|file| file.join("/")).collect()
    }

    /// Returns `true` if the files are a module and children of it.
    pub(crate) fn is_in_one_module(&self) -> bool {
        // The set is sorted, so a parent precedes its children.
        let parent = self.files.first();
        parent.is_some_and(|parent| self.files.iter().all(|file| file.starts_with(parent)))
    }

    /// Returns one line per file, with the files of the cycle that it names.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("import cycle of {} files:", self.files.len());
        for &file in &self.files {
            let named = self.imports.edges[file].iter();
            let named = named.filter(|other| self.files.contains(other));
            let named: Vec<_> = named.map(|other| other.join("/")).collect();
            text += &format!("\n  {} names {}", file.join("/"), named.join(", "));
        }
        text
    }
}

/// Returns the modules whose items a file names.
fn named_modules(
    file: &Source,
    exports: &Exports,
    modules: &BTreeSet<Segments>,
) -> BTreeSet<Segments> {
    let names = file.names(exports);
    // `use super::script;` lets `script::plain` follow.
    let imported: HashMap<&str, &Segments> = names
        .iter()
        .filter_map(|named| match named {
            Named::Here(path) if modules.contains(path) => Some((path.last()?.as_str(), path)),
            _ => None,
        })
        .collect();
    let paths = names.iter().filter_map(|named| match named {
        Named::Here(path) => Some(path.clone()),
        Named::Elsewhere(path) => {
            let child = [file.module.as_slice(), &path[..1]].concat();
            let known = modules.get(&child);
            let start = known.or_else(|| imported.get(path[0].as_str()).copied())?;
            Some(exports.follow_path([start.as_slice(), &path[1..]].concat()))
        }
    });
    paths
        .flat_map(|path| match path.split_last() {
            Some((glob, module)) if glob == "*" => exports.all_of(module),
            _ => vec![path],
        })
        .filter_map(|path| module_of(&path, modules))
        .collect()
}

/// Returns the innermost module on a path.
fn module_of(path: &[String], modules: &BTreeSet<Segments>) -> Option<Segments> {
    let prefixes = (0..=path.len()).rev().map(|end| &path[..end]);
    let mut known = prefixes.filter_map(|prefix| modules.get(prefix));
    known.next().cloned()
}

mod tests {
    use super::*;

    /// Returns the files of each cycle of a crate with these sources.
    fn cycles(sources: &[(&str, &str)]) -> Vec<String> {
        let module = |at: &str| -> Segments {
            let parts = at.split('/').filter(|part| !part.is_empty());
            parts.map(String::from).collect()
        };
        let sources: Vec<_> = sources
            .iter()
            .map(|(at, text)| Source::parse(&module(at), text))
            .collect();
        let imports = Imports::of(&sources);
        let files = |cycle: &Cycle<'_>| cycle.names().join(" ");
        imports.cycles().iter().map(files).collect()
    }

    #[test]
    fn chain_of_files_has_no_cycle() {
        let found = cycles(&[
            ("a", "use crate::b::B; use crate::c::C;"),
            ("b", "use crate::c::C;"),
            ("c", "fn own() { crate::c::own() }"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn cycles_without_common_file_are_separate() {
        let found = cycles(&[
            ("a", "use crate::b::B;"),
            ("b", "use super::c::C; use crate::d::D;"),
            ("c", "fn f() -> crate::a::A { todo() }"),
            ("d", "use crate::e::E;"),
            ("e", "use crate::d::D;"),
            ("f", "use crate::a::A;"),
        ]);
        assert_eq!(found, ["a b c", "d e"]);
    }

    #[test]
    fn cycles_with_common_file_are_one() {
        let found = cycles(&[
            ("a", "use crate::b::B;"),
            ("b", "use crate::{a::A, c::C};"),
            ("c", "use crate::b::B;"),
        ]);
        assert_eq!(found, ["a b c"]);
    }

    #[test]
    fn path_through_re_export_leads_to_definition() {
        let found = cycles(&[
            ("", "//! Docs.\nmod f; pub use f::{A, B};"),
            ("f", "mod a; mod b; pub use a::A; pub(crate) use b::B;"),
            ("f/a", "use crate::B;"),
            ("f/b", "use super::A;"),
        ]);
        assert_eq!(found, ["f/a f/b"]);
        let found = cycles(&[
            ("f", "mod a; mod b; pub use a::A; pub use b::B;"),
            ("f/a", "use super::B;"),
            ("f/b", "pub struct B;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn glob_of_re_exports_leads_to_all_definitions() {
        let found = cycles(&[
            ("f", "mod a; mod b; pub use a::A; pub use b::B;"),
            ("f/a", "use super::*;"),
            ("f/b", "use super::A;"),
        ]);
        assert_eq!(found, ["f/a f/b"]);
    }

    #[test]
    fn imported_module_leads_to_named_file() {
        let found = cycles(&[
            ("f", "mod a; mod b; pub use a::f;"),
            ("f/a", "use super::b; fn f() { b::f() }"),
            ("f/b", "use crate::f; fn f() { f::f() }"),
        ]);
        assert_eq!(found, ["f/a f/b"]);
    }

    #[test]
    fn file_and_its_private_module_are_separate() {
        let found = cycles(&[
            ("lane", "mod part; struct Lane; fn f() { part::f() }"),
            ("lane/part", "use super::Lane;"),
        ]);
        assert_eq!(found, ["lane lane/part"]);
    }

    #[test]
    fn names_in_tests_docs_and_visibility_do_not_count() {
        let b = "/// [`A`](crate::a::A)
            #[cfg(test)] mod t { use crate::a::A; }
            pub(in crate::a) struct B;";
        let found = cycles(&[
            ("a", "use crate::b::B;"),
            ("b", b),
            ("b/tests", "use crate::c::C;"),
            ("c", "use crate::b::tests::f;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn file_with_inline_module_counts() {
        let found = cycles(&[
            (
                "a",
                "mod b; mod inline { use crate::a::b::B; } pub use b::B;",
            ),
            ("a/b", "use crate::a::inline::C;"),
        ]);
        assert_eq!(found, ["a a/b"]);
    }

    #[test]
    fn crate_root_with_doctest_item_is_no_file() {
        let root = "mod a; mod b; pub use a::A; pub use b::B; #[cfg(doctest)] struct Readme;";
        let found = cycles(&[("", root), ("a", "use crate::*;"), ("b", "pub struct B;")]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn module_and_its_children_are_one_module() {
        let in_one_module = |sources: [(&str, &str); 3]| {
            let segments = |at: &str| -> Segments { at.split('/').map(String::from).collect() };
            let sources = sources.map(|(at, text)| Source::parse(&segments(at), text));
            Imports::of(&sources).cycles()[0].is_in_one_module()
        };
        let names_parent = "use super::A;";
        assert!(in_one_module([
            ("a", "mod b; mod c; use b::B; use c::C; struct A;"),
            ("a/b", names_parent),
            ("a/c", names_parent),
        ]));
        assert!(!in_one_module([
            ("f/a", "use super::b::B;"),
            ("f/b", "use super::c::C;"),
            ("f/c", "use super::a::A;"),
        ]));
    }

    #[test]
    fn description_lists_files_named_in_cycle() {
        let sources = [
            ("f/a", "use super::b::B;"),
            ("f/b", "use crate::g::G;"),
            ("g", "use crate::f::a::A;"),
        ];
        let segments = |at: &str| -> Segments { at.split('/').map(String::from).collect() };
        let sources = sources.map(|(at, text)| Source::parse(&segments(at), text));
        let imports = Imports::of(&sources);
        assert!(imports.cycles()[0].describe().contains("f/b names g"));
    }
}
