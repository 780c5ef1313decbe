//! The examples that make keys, in the documentation, the guide, README.md and `examples/`: each of them runs here as it
//! is written there, over both versions.

use std::collections::BTreeSet;
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;

use axum::body::Body;
use axum::extract::Path;
use axum::routing::put;
use axum::{Extension, Json, Router};
use http::request::Parts;
use http::{Request, StatusCode};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use serde::Deserialize;
use tower_lock::keys::{InvalidKey, KeyExtractor};
use tower_lock::{
    Held, LockBy, LockKey, LockKeys, LockLayer, LockManager, LockScopeLayer, LockTarget, Locked,
};

use super::{VERSIONS, send, serve};

/// The code of an example, and a program around it.
struct Example {
    code: &'static str,
    route: &'static str,
    body: &'static str,
    app: fn(LockManager) -> Router,
}

fn shown<'k>(keys: impl Iterator<Item = &'k LockKey>) -> String {
    keys.map(|key| key.as_str().to_owned() + "\n").collect()
}

async fn show(held: Option<Held>) -> String {
    shown(held.iter().flat_map(Held::keys))
}

/// A call of a constructor, without the manager.
macro_rules! layer {
    ($route:literal, $by:ident $(::<$type:ty>)? ($($arguments:tt)*)) => {
        Example {
            code: stringify!($by $(::<$type>)? ($($arguments)*)),
            route: $route,
            body: "",
            app: |locks| {
                let layer = LockLayer::$by $(::<$type>)? (locks, $($arguments)*);
                Router::new().route($route, put(show).route_layer(layer))
            },
        }
    };
}

/// The keys of a body.
macro_rules! target {
    ($body:literal, $target:item { $($method:tt)* }) => {
        Example {
            code: stringify!($($method)*),
            route: "/",
            body: $body,
            app: |locks| {
                #[derive(Deserialize)]
                $target
                impl LockTarget for Target {
                    $($method)*
                }
                async fn lock(Locked(_, guard): Locked<Json<Target>>) -> String {
                    shown(guard.keys())
                }
                let app = Router::new().route("/", put(lock));
                app.layer(LockScopeLayer::new()).with_state(locks)
            },
        }
    };
}

/// A method, also as text.
macro_rules! keys_of {
    ($code:ident, impl $trait:ty, $type:ty { $($method:tt)* }) => {
        const $code: &str = stringify!($($method)*);
        impl $trait for $type {
            $($method)*
        }
    };
}

struct ByOrder;

keys_of! {
    PATH_KEYS,
    impl LockBy<Path<(String, u64)>>, ByOrder {
        fn lock_keys(Path((shop, order)): &Path<(String, u64)>) -> LockKeys {
            LockKey::from_parts(("order", shop, order)).into()
        }
    }
}

#[derive(Clone)]
struct Tenant(String);

impl LockTarget for Tenant {
    fn lock_keys(&self) -> LockKeys {
        LockKey::from_parts(["tenant", &self.0]).into()
    }
}

struct TenantAndPath;

keys_of! {
    TENANT_AND_PATH,
    impl KeyExtractor, TenantAndPath {
        fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
            let Some(tenant) = request.headers.get("x-tenant") else {
                return Ok(None);
            };
            let path = LockKey::from_path(request.uri.path());
            path.validate()?;
            let parts = ["tenant".as_bytes(), tenant.as_bytes(), path.as_str().as_bytes()];
            Ok(Some(LockKey::from_parts(parts).into()))
        }
    }
}

#[rustfmt::skip]
fn examples() -> Vec<Example> {
    vec![
        layer!("/orders/42", by_path()),
        layer!("/accounts/{account}", by_path_param("account")),
        layer!("/orders/{order}", by_path_param("order")),
        layer!("/orders/{id}", by_path_param("id")),
        layer!("/accounts/{account}", by_path_param_as::<u64>("account")),
        layer!("/shops/{shop}/{order}", by_path_params(["shop", "order"])),
        layer!("/", by_header("x-account")),
        layer!("/", by_header("x-tenant")),
        layer!("/", by_header("account")),
        layer!("/", by_host()),
        layer!("/", by_query("account")),
        layer!("/", by_extension::<Tenant>()),
        layer!("/orders/42", new(TenantAndPath)),
        layer!("/", by_fn(|request| {
            let missing = || InvalidKey::Missing("host".into());
            let host = match request.uri.authority() {
                Some(authority) => authority.as_str().as_bytes(),
                None => request.headers.get("host").ok_or_else(missing)?.as_bytes(),
            };
            Ok(LockKey::from_parts([b"host", host]))
        })),
        layer!("/", by_fn(|request| {
            let missing = || InvalidKey::Missing("header `x-account`".into());
            let account = request.headers.get("x-account").ok_or_else(missing)?;
            Ok(LockKey::from_parts([b"account", account.as_bytes()]))
        })),
        target!(r#"{"from": "7", "to": "8"}"#, struct Target { from: String, to: String } {
            fn lock_keys(&self) -> LockKeys {
                LockKeys::from([
                    LockKey::from_parts(["account", &self.from]),
                    LockKey::from_parts(["account", &self.to]),
                ])
            }
        }),
        target!(r#"{"from": "7", "to": "8"}"#, struct Target { from: String, to: String } {
            fn lock_keys(&self) -> LockKeys {
                [&self.from, &self.to].map(|id| LockKey::from_parts(["account", id])).into()
            }
        }),
        target!(r#"{"account": "7"}"#, struct Target { account: String } {
            fn lock_keys(&self) -> LockKeys {
                LockKey::from_parts(["account", &self.account]).into()
            }
        }),
        target!(r#"{"id": "7"}"#, struct Target { id: String } {
            fn lock_keys(&self) -> LockKeys {
                LockKey::from_parts(["account", &self.id]).into()
            }
        }),
        target!(r#"{"order": "7"}"#, struct Target { order: String } {
            fn lock_keys(&self) -> LockKeys {
                LockKey::from_parts(["order", &self.order]).into()
            }
        }),
        target!(r#""7""#, struct Target(String); {
            fn lock_keys(&self) -> LockKeys {
                LockKey::from_parts(["order", &self.0]).into()
            }
        }),
        target!(r#""acme""#, struct Target(String); {
            fn lock_keys(&self) -> LockKeys {
                LockKey::from_parts(["tenant", &self.0]).into()
            }
        }),
        target!("{}", struct Target {} {
            fn lock_keys(&self) -> LockKeys { LockKey::new("transfer").into() }
        }),
        Example {
            code: PATH_KEYS,
            route: "/shops/{shop}/{order}",
            body: "",
            app: |locks| {
                async fn lock(Locked(_, guard): Locked<Path<(String, u64)>, ByOrder>) -> String {
                    shown(guard.keys())
                }
                let app = Router::new().route("/shops/{shop}/{order}", put(lock));
                app.layer(LockScopeLayer::new()).with_state(locks)
            },
        },
    ]
}

/// Writes tokens in one way, whatever their lines are: the last comma of a list is a matter of format.
fn flatten(tokens: impl IntoIterator<Item = TokenTree>, text: &mut Vec<String>) {
    for token in tokens {
        let TokenTree::Group(group) = token else {
            text.push(token.to_string());
            continue;
        };
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        text.push(open.to_owned());
        flatten(group.stream(), text);
        text.pop_if(|last| last == ",");
        text.push(close.to_owned());
    }
}

fn flat(tokens: impl IntoIterator<Item = TokenTree>) -> String {
    let mut text = Vec::new();
    flatten(tokens, &mut text);
    text.join(" ")
}

fn is_word(token: &TokenTree, is: impl Fn(&str) -> bool) -> bool {
    matches!(token, TokenTree::Ident(word) if is(&word.to_string()))
}

fn group(token: &TokenTree, delimiter: Delimiter) -> Option<TokenStream> {
    match token {
        TokenTree::Group(group) if group.delimiter() == delimiter => Some(group.stream()),
        _ => None,
    }
}

/// Collects the calls of constructors of `LockLayer`, without the manager, and the functions that return keys.
fn collect(tokens: TokenStream, found: &mut BTreeSet<String>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            collect(group.stream(), found);
        }
        let rest = &tokens[at..];
        let end = |delimiter| rest.iter().position(|it| group(it, delimiter).is_some());
        if let [layer, _, _, by, ..] = rest
            && is_word(layer, |word| word == "LockLayer")
            && is_word(by, |word| word == "new" || word.starts_with("by_"))
            && let Some(end) = end(Delimiter::Parenthesis)
        {
            let arguments = group(&rest[end], Delimiter::Parenthesis).unwrap();
            let arguments = arguments.into_iter().skip_while(|it| it.to_string() != ",");
            let code = [flat(rest[3..end].to_vec()), flat(arguments.skip(1))];
            found.insert(format!("{} ( {} )", code[0], code[1]).replace("(  )", "( )"));
        }
        if is_word(token, |word| word == "fn")
            && let Some(end) = end(Delimiter::Brace)
            && rest[..end]
                .iter()
                .any(|it| is_word(it, |word| word == "LockKeys"))
        {
            found.insert(flat(rest[..=end].to_vec()));
        }
    }
}

/// Returns the code in the documentation of a file: that between fences, with the lines that rustdoc hides.
fn code_of(text: &str, comment: &[&str]) -> String {
    let mut code = String::new();
    let (mut is_inside, mut is_rust) = (false, false);
    for line in text.lines() {
        let line = line.trim_start();
        let Some(line) = comment.iter().find_map(|mark| line.strip_prefix(mark)) else {
            continue;
        };
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            is_inside = !is_inside;
            is_rust = matches!(kind, "" | "rust" | "no_run" | "compile_fail");
        } else if is_inside && is_rust {
            let line = line.strip_prefix(' ').unwrap_or(line);
            code += line
                .strip_prefix("# ")
                .unwrap_or(line)
                .trim_start_matches("##");
            code += "\n";
        }
    }
    code
}

fn files(folder: &FilePath, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

fn documented() -> BTreeSet<String> {
    let manifest = FilePath::new(env!("CARGO_MANIFEST_DIR"));
    let is_root = |folder: &&FilePath| folder.join("src/guide").is_dir();
    let root = manifest.ancestors().find(is_root).unwrap();
    let mut found = BTreeSet::new();
    let mut add = |code: &str, file: &FilePath| match TokenStream::from_str(code) {
        Ok(tokens) => collect(tokens, &mut found),
        Err(error) => panic!("{}: {error}", file.display()),
    };
    let mut paths = vec![root.join("README.md")];
    files(&root.join("src"), &mut paths);
    files(&root.join("examples"), &mut paths);
    for path in paths {
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        match path.extension().and_then(|it| it.to_str()) {
            Some("md") => add(&code_of(&text, &[""]), &path),
            Some("rs") if path.starts_with(root.join("examples")) => add(&text, &path),
            Some("rs") => add(&code_of(&text, &["///", "//!"]), &path),
            _ => {}
        }
    }
    found
}

#[test]
fn each_documented_example_is_listed() {
    let listed = examples().into_iter().map(|example| example.code);
    let listed = listed
        .chain([TENANT_AND_PATH])
        .map(|code| flat(TokenStream::from_str(code).unwrap()));
    let listed: BTreeSet<_> = listed.collect();
    let documented = documented();
    let missing: Vec<_> = documented.difference(&listed).collect();
    assert!(missing.is_empty(), "not listed: {missing:#?}");
    let gone: Vec<_> = listed.difference(&documented).collect();
    assert!(gone.is_empty(), "no longer documented: {gone:#?}");
}

#[tokio::test]
async fn documented_example_locks_over_both_versions() {
    for example in examples() {
        let tenant = Extension(Tenant("acme".to_owned()));
        let address = serve((example.app)(LockManager::in_memory()).layer(tenant)).await;
        let segments = example
            .route
            .split('/')
            .map(|segment| match segment.starts_with('{') {
                true => "7",
                false => segment,
            });
        let path = segments.collect::<Vec<_>>().join("/");
        let mut keys = Vec::new();
        for version in VERSIONS {
            let request = Request::put(format!("http://{address}{path}?account=7"))
                .header("content-type", "application/json")
                .header("account", "7")
                .header("x-account", "7")
                .header("x-tenant", "acme");
            let request = request.body(Body::from(example.body)).unwrap();
            let (status, held) = send(version, request).await;
            assert_eq!(
                status,
                StatusCode::OK,
                "{version:?}: {}: {held}",
                example.code
            );
            assert!(
                !held.is_empty(),
                "unlocked over {version:?}: {}",
                example.code
            );
            keys.push(held);
        }
        assert_eq!(keys[0], keys[1], "{}", example.code);
    }
}
