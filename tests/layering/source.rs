//! The paths in a source file, each resolved to a module of this crate or to another crate.
//! Comments, strings and `#[cfg(test)]` items do not count; bodies of macros do.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The segments of a path. The last segment of a glob is `*`.
pub(crate) type Segments = Vec<String>;

/// A file under `src/`.
pub(crate) struct Source {
    /// `["lock", "lane"]` for `src/lock/lane.rs`, none for `src/lib.rs`.
    pub(crate) module: Segments,
    tokens: TokenStream,
}

/// A path in a file, resolved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// A path of this crate from its root, after re-exports were followed.
    Here(Segments),
    /// A path that starts at another crate, a child module or an imported name.
    Elsewhere(Segments),
}

/// The definitions of re-exported names.
#[derive(Default)]
pub(crate) struct Exports {
    targets: HashMap<Segments, Segments>,
}

pub(crate) fn read_all(src: &Path) -> Vec<Source> {
    let mut sources = Vec::new();
    read_folder(src, &mut Vec::new(), &mut sources);
    sources
}

fn read_folder(folder: &Path, module: &mut Segments, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        module.push(name.into_owned());
        if path.is_dir() {
            read_folder(&path, module, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a text file");
            let owns_folder = ["lib", "mod"]
                .iter()
                .any(|name| path.ends_with(format!("{name}.rs")));
            let depth = module.len() - usize::from(owns_folder);
            sources.push(Source::parse(&module[..depth], &text));
        }
        module.pop();
    }
}

impl Source {
    pub(crate) fn parse(module: &[String], text: &str) -> Self {
        let tokens = text.parse();
        let tokens = tokens.unwrap_or_else(|error| panic!("src/{}: {error}", module.join("/")));
        Self {
            module: module.to_vec(),
            tokens,
        }
    }

    /// Returns `true` if the whole file is for tests.
    pub(crate) fn is_test(&self) -> bool {
        self.module.iter().any(|name| name == "tests")
    }

    /// Returns `true` if the file declares modules and contains only `mod` and `use` items.
    pub(crate) fn only_re_exports(&self) -> bool {
        let tokens: Vec<_> = self.tokens.clone().into_iter().collect();
        let mut rest = tokens.as_slice();
        let mut declares = false;
        while !rest.is_empty() {
            if let Some(end) = test_item(rest) {
                rest = &rest[end..];
                continue;
            }
            rest = match rest {
                [TokenTree::Punct(_) | TokenTree::Group(_), rest @ ..] => rest,
                [TokenTree::Ident(word), rest @ ..] if word == "pub" => rest,
                [
                    TokenTree::Ident(word),
                    _name,
                    TokenTree::Punct(_end),
                    rest @ ..,
                ] if word == "mod" => {
                    declares = true;
                    rest
                }
                [TokenTree::Ident(word), rest @ ..] if word == "use" => {
                    let is_end = |token: &TokenTree| matches!(token, TokenTree::Punct(end) if end.as_char() == ';');
                    let end = rest.iter().position(is_end);
                    end.map_or(&[], |end| &rest[end..])
                }
                _ => return false,
            };
        }
        declares
    }

    pub(crate) fn names(&self, exports: &Exports) -> Vec<Named> {
        let mut paths = Vec::new();
        collect(self.tokens.clone(), &[], &mut paths);
        let resolved = paths.into_iter().map(|path| self.resolve(path));
        resolved.map(|named| exports.follow(named)).collect()
    }

    /// Returns the names of the methods that the file calls.
    pub(crate) fn methods(&self) -> Vec<String> {
        let mut methods = Vec::new();
        collect_methods(self.tokens.clone(), &mut methods);
        methods
    }

    fn resolve(&self, path: Segments) -> Named {
        let mut base = self.module.as_slice();
        let mut rest = path.as_slice();
        match path[0].as_str() {
            "crate" => (base, rest) = (&[], &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {}
            _ => return Named::Elsewhere(path),
        }
        while rest.first().is_some_and(|segment| segment == "super") {
            (base, rest) = (&base[..base.len().saturating_sub(1)], &rest[1..]);
        }
        Named::Here([base, rest].concat())
    }
}

impl Exports {
    /// Reads the paths of each file that start at one of its child modules.
    pub(crate) fn of(sources: &[Source]) -> Self {
        let mut exports = Self::default();
        for source in sources {
            let mut paths = Vec::new();
            collect(source.tokens.clone(), &[], &mut paths);
            for path in paths {
                let child = [source.module.as_slice(), &path[..1]].concat();
                if sources.iter().any(|other| other.module == child) {
                    let target = [source.module.as_slice(), &path].concat();
                    let name = [source.module.as_slice(), &path[path.len() - 1..]].concat();
                    exports.targets.insert(name, target);
                }
            }
        }
        exports
    }

    fn follow(&self, named: Named) -> Named {
        match named {
            Named::Here(path) => Named::Here(self.follow_path(path)),
            Named::Elsewhere(_) => named,
        }
    }

    /// Returns the path of the definition, for a path of this crate.
    pub(crate) fn follow_path(&self, mut path: Segments) -> Segments {
        let mut end = 1;
        while end <= path.len() {
            if let Some(target) = self.targets.get(&path[..end]) {
                path.splice(..end, target.iter().cloned());
            }
            // An item may have the name of its module, so a replaced name is not replaced again.
            end += 1;
        }
        path
    }

    /// Returns the paths that a glob of this module leads to, the module itself included.
    pub(crate) fn all_of(&self, module: &[String]) -> Vec<Segments> {
        let inside = |name: &Segments| name.split_last().is_some_and(|(_, of)| of == module);
        let names = self.targets.keys().filter(|name| inside(name));
        let targets = names.map(|name| self.follow_path(name.clone()));
        targets.chain([module.to_vec()]).collect()
    }
}

/// Collects every path of at least two segments, and single names after `use`.
fn collect(tokens: TokenStream, prefix: &[String], paths: &mut Vec<Segments>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    let mut after_use = false;
    while at < tokens.len() {
        if let Some(end) = test_item(&tokens[at..]) {
            at += end;
            continue;
        }
        match &tokens[at] {
            TokenTree::Group(group) if is_visibility(group) => {}
            TokenTree::Group(group) => collect(group.stream(), &[], paths),
            // The new name of an import is no path.
            TokenTree::Ident(ident) if ident == "as" && !prefix.is_empty() => at += 1,
            TokenTree::Ident(_) if !is_method(&tokens[..at]) => {
                let (path, next) = path_at(&tokens, at);
                let whole = [prefix, &path].concat();
                at = next - 1;
                match tokens.get(next + 2) {
                    Some(TokenTree::Group(group))
                        if is_separator(&tokens[next..])
                            && group.delimiter() == Delimiter::Brace =>
                    {
                        collect(group.stream(), &whole, paths);
                        at = next + 2;
                    }
                    Some(TokenTree::Punct(glob))
                        if is_separator(&tokens[next..]) && glob.as_char() == '*' =>
                    {
                        paths.push([whole, vec!["*".to_owned()]].concat());
                    }
                    _ if whole.len() > 1 || after_use => paths.push(whole),
                    _ => {}
                }
                after_use = path == ["use"];
            }
            _ => {}
        }
        at += 1;
    }
}

fn collect_methods(tokens: TokenStream, methods: &mut Vec<String>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        if let Some(end) = test_item(&tokens[at..]) {
            at += end;
            continue;
        }
        match &tokens[at..] {
            [TokenTree::Group(group), ..] => collect_methods(group.stream(), methods),
            [TokenTree::Ident(name), TokenTree::Group(arguments), ..]
                if is_method(&tokens[..at]) && arguments.delimiter() == Delimiter::Parenthesis =>
            {
                methods.push(name.to_string());
            }
            _ => {}
        }
        at += 1;
    }
}

/// Returns the path that starts at `start`, and the index after it.
fn path_at(tokens: &[TokenTree], start: usize) -> (Segments, usize) {
    let mut path = vec![tokens[start].to_string()];
    let mut next = start + 1;
    while is_separator(&tokens[next..])
        && let Some(TokenTree::Ident(segment)) = tokens.get(next + 2)
    {
        path.push(segment.to_string());
        next += 3;
    }
    (path, next)
}

fn is_separator(tokens: &[TokenTree]) -> bool {
    let is_colon = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(colon)) if colon.as_char() == ':');
    is_colon(tokens.first()) && is_colon(tokens.get(1))
}

fn is_method(before: &[TokenTree]) -> bool {
    matches!(before.last(), Some(TokenTree::Punct(dot)) if dot.as_char() == '.')
}

/// Returns `true` for the `(in path)` of an item's visibility.
fn is_visibility(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    matches!(first, Some(TokenTree::Ident(word)) if word == "in")
}

/// Returns the length of an item that starts here and is compiled only for tests.
fn test_item(tokens: &[TokenTree]) -> Option<usize> {
    let [TokenTree::Punct(hash), TokenTree::Group(attribute), ..] = tokens else {
        return None;
    };
    let attribute = attribute.stream().to_string().replace(' ', "");
    let is_test = attribute == "cfg(test)" || attribute.contains("doctest");
    if hash.as_char() != '#' || !is_test {
        return None;
    }
    let ends_item = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(semicolon) => semicolon.as_char() == ';',
        _ => false,
    };
    let end = tokens.iter().position(ends_item)?;
    Some(end + 1)
}
