//! Rules of the source that no behavior shows: the auto traits of public types, and the imports of `src/`. The engine
//! names no HTTP, the middleware names no backend, rooms of a module name only lower ones, only `backend/redis` names Redis, only `lock/tasks/dispatch.rs` resolves
//! waiters, no import cycle is large, and none of the engine leaves one module.
//!
//! It is a program of its own: it needs no server, and builds without features.

mod auto_traits;
mod cycles;
#[path = "../support/exports.rs"]
mod exports;
mod msrv;
mod source;

use std::collections::BTreeSet;
use std::path::Path;

use cycles::{Cycle, Imports};
use source::{Exports, Named, Source, read_all};

/// The rules of the modules of one layer.
struct Layer {
    modules: &'static [&'static str],
    /// Other modules of this crate that they may name.
    may_name: &'static [&'static str],
    /// Crates that they must not name, in addition to those of Redis.
    never: &'static [&'static str],
}

const GROUND: &[&str] = &[
    "key",
    "owner",
    "error",
    "jitter",
    "mode",
    "mutex",
    "observe",
    "task",
    "test_util",
];
const HTTP: &[&str] = &["http", "http_body", "tower", "axum"];

/// The layers, lowest first. `connect` and the root are above all of them: `connect` joins managers
/// and backends, and the root re-exports.
const LAYERS: &[Layer] = &[
    Layer {
        modules: GROUND,
        may_name: &["error", "mode", "mutex", "owner", "test_util"],
        never: HTTP,
    },
    // The guide contains only documentation.
    Layer {
        modules: &["guide"],
        may_name: &[],
        never: HTTP,
    },
    Layer {
        modules: &["backend"],
        may_name: GROUND,
        never: HTTP,
    },
    Layer {
        modules: &["lock"],
        may_name: &[
            "key",
            "owner",
            "error",
            "jitter",
            "mutex",
            "observe",
            "task",
            "test_util",
            "backend",
        ],
        never: HTTP,
    },
    Layer {
        modules: &["layer"],
        may_name: &[
            "key", "owner", "error", "jitter", "mutex", "observe", "task", "lock",
        ],
        never: &[],
    },
    Layer {
        modules: &["dashboard"],
        may_name: &[
            "key", "owner", "error", "jitter", "mutex", "observe", "task", "lock",
        ],
        never: &[],
    },
    Layer {
        modules: &["extract"],
        may_name: &[
            "key", "owner", "error", "jitter", "mutex", "observe", "task", "lock", "layer",
        ],
        never: &[],
    },
];

/// The rooms of a module, lowest first: a file names only those below its own. Rooms of one group may name each other.
struct Rooms {
    module: &'static [&'static str],
    groups: &'static [&'static [&'static str]],
}

/// The files of a module that are in none of its rooms.
const BESIDE: &str = "";

const ROOMS: &[Rooms] = &[
    Rooms {
        module: &["lock"],
        groups: &[
            &["clock"],
            &["lease"],
            &["lane"],
            &["table"],
            &["engine"],
            &["tasks"],
            &["acquire"],
            &["api"],
            &["view"],
        ],
    },
    Rooms {
        module: &["layer"],
        groups: &[
            &["keys"],
            &["rejection"],
            &["config"],
            &["scope", BESIDE],
            &["body_first"],
        ],
    },
    Rooms {
        module: &["backend", "redis", "connection"],
        groups: &[&["server"], &[BESIDE], &["dial"], &["handle"]],
    },
    Rooms {
        module: &["dashboard"],
        groups: &[&["readings"], &[BESIDE, "api", "page"]],
    },
];

impl Rooms {
    /// Returns the place of the room that has this module, or `None` for the module of the rooms itself and outside of it.
    fn place_of(&self, module: &[String]) -> Option<usize> {
        let inside = module.iter().take(self.module.len()).eq(self.module);
        let part = module.get(self.module.len()).filter(|_| inside)?;
        let has = |room: &str| self.groups.iter().position(|group| group.contains(&room));
        has(part).or_else(|| has(BESIDE))
    }
}

/// The modules of `backend` that the engine may name: the contract, but no backend.
const CONTRACT: &[&str] = &["contract", "erased", "hints"];

const REDIS: &[&str] = &["redis", "deadpool", "deadpool_redis"];

const POSTGRES: &[&str] = &[
    "tokio_postgres",
    "tokio_postgres_rustls",
    "deadpool_postgres",
    "webpki_roots",
];

const TLS: &[&str] = &["rustls"];

/// Modules of other crates that start tasks or threads.
const SPAWNS: &[&[&str]] = &[
    &["tokio", "spawn"],
    &["tokio", "task"],
    &["tokio", "runtime"],
    &["std", "thread"],
];

/// Compares the clocks of the machine, and a test that pauses tokio's must not look like a suspend.
const REAL_TIME: [&str; 3] = ["lock", "clock", "suspended"];

/// A function in those modules that starts nothing.
const STARTS_NONE: &[&str] = &["tokio", "task", "yield_now"];

/// The enum of the topologies.
const TOPOLOGIES: &str = "Targets";

/// The files that name it, besides re-exports: one has it, and the other one matches over it.
const NAME_TOPOLOGIES: [&str; 2] = [
    "backend/redis/connection/server/url",
    "backend/redis/topology/open",
];

/// The only file of the engine that resolves waiters and releases, and wakes loss futures: the mutex of a lane is free
/// there.
const DISPATCH: [&str; 3] = ["lock", "tasks", "dispatch"];

/// The methods that do so.
const RESOLVES: &[&str] = &["answer", "send", "wake_listeners"];

/// The method that marks a guard lost.
const LOSES: &[&str] = &["lose"];

/// The modules that may do so: under the mutex of a lane, so that no other grant of the key has begun.
const LANES: [&[&str]; 2] = [&["lock", "lane"], &["lock", "lease", "grant"]];

/// The files that read the waker of a context. A waker may own a task of the program, so one that is stored under a mutex is
/// replaced by `mutex::replace_waker`, and dropped after the mutex is free.
const WAKERS: [&[&str]; 6] = [
    &["backend", "hints", "pending"],
    &["layer", "scope", "watch"],
    &["lock", "lane", "queue", "waiter"],
    &["lock", "lease", "lost"],
    // Stores no waker.
    &["task", "timer"],
    // Stores only that of its own task.
    &["lock", "tasks", "contender", "early_poll"],
];

/// The loop of attempts for the waiters of a lane.
const LOOP: &str = "AcquireLoop";

/// The file that starts one, with the effect of a lane event. Two loops of one lane would attempt at the same time.
const START_LOOPS: [&str; 3] = ["lock", "tasks", "dispatch"];

/// The most files in one import cycle.
const LARGEST_CYCLE: usize = 3;

fn violations(source: &Source, exports: &Exports) -> Vec<String> {
    let names = source.names(exports);
    let broken = names.iter().filter_map(|named| {
        let (Named::Here(path) | Named::Elsewhere(path)) = named;
        let rule = match named {
            Named::Here(_) => {
                breaks_layers(&source.module, path).or_else(|| breaks_rooms(&source.module, path))
            }
            Named::Elsewhere(_) => breaks_borders(&source.module, path),
        };
        let rule = rule.or_else(|| breaks_topologies(source, path));
        let rule = rule.or_else(|| breaks_loops(&source.module, path))?;
        let module = source.module.join("/");
        Some(format!("src/{module} names `{}`: {rule}", path.join("::")))
    });
    let path: Vec<&str> = source.module.iter().map(String::as_str).collect();
    let module = source.module.join("/");
    let methods = source.methods().into_iter();
    let misplaced = methods.filter_map(|method| {
        let rule = if method == "waker" && !WAKERS.contains(&&*path) {
            "another file may drop a waker under a mutex"
        } else if !path.starts_with(&["lock"]) {
            return None;
        } else if RESOLVES.contains(&&*method) && path != DISPATCH {
            "only lock/tasks/dispatch.rs resolves waiters"
        } else if LOSES.contains(&&*method) && !LANES.iter().any(|lane| path.starts_with(lane)) {
            "only a lane marks its guards lost"
        } else {
            return None;
        };
        Some(format!("src/{module} calls `{method}`: {rule}"))
    });
    broken.chain(misplaced).collect()
}

fn layer_of(module: &[String]) -> Option<&'static Layer> {
    let top = module.first()?;
    LAYERS.iter().find(|layer| layer.modules.contains(&&**top))
}

fn breaks_layers(module: &[String], path: &[String]) -> Option<&'static str> {
    let layer = layer_of(module)?;
    // `use crate::*` names everything.
    let Some(target) = path.first() else {
        return Some("a path must name a module of the crate");
    };
    if *target == module[0] {
        return None;
    }
    if !layer.may_name.contains(&&**target) {
        return Some("the module is not below it");
    }
    let part = path.get(1).map_or("", String::as_str);
    if target == "backend" && !CONTRACT.contains(&part) {
        return Some("the engine names only the contract");
    }
    None
}

fn breaks_rooms(module: &[String], path: &[String]) -> Option<&'static str> {
    let breaks = |rooms: &Rooms| rooms.place_of(path) > rooms.place_of(module);
    let within = |rooms: &&Rooms| rooms.place_of(module).is_some();
    let mut within = ROOMS.iter().filter(within);
    within.any(breaks).then_some("the room is not below it")
}

fn breaks_borders(module: &[String], path: &[String]) -> Option<&'static str> {
    let is_in = |store: &str| module.starts_with(&["backend".to_owned(), store.to_owned()]);
    if REDIS.contains(&&*path[0]) && !is_in("redis") {
        return Some("only backend/redis names Redis");
    }
    if POSTGRES.contains(&&*path[0]) && !is_in("postgres") {
        return Some("only backend/postgres names PostgreSQL");
    }
    if TLS.contains(&&*path[0]) && !is_in("redis") && !is_in("postgres") {
        return Some("only a store names TLS");
    }
    if let Some(layer) = layer_of(module)
        && layer.never.contains(&&*path[0])
    {
        return Some("this layer names no HTTP");
    }
    let starts_with = |start: &[&str]| path.iter().take(start.len()).eq(start);
    if starts_with(&["std", "time", "Instant"]) && *module != REAL_TIME {
        return Some("tests cannot pause it: use tokio::time::Instant");
    }
    let spawns = SPAWNS.iter().any(|start| starts_with(start)) && !starts_with(STARTS_NONE);
    if spawns && module.first().is_none_or(|top| top != "task") {
        return Some("only task spawns");
    }
    None
}

fn breaks_topologies(source: &Source, path: &[String]) -> Option<&'static str> {
    let names = path.iter().any(|part| part == TOPOLOGIES);
    let may_name =
        || NAME_TOPOLOGIES.contains(&&*source.module.join("/")) || source.only_re_exports();
    (names && !may_name()).then_some("only topology/open.rs matches over the topologies")
}

fn breaks_loops(module: &[String], path: &[String]) -> Option<&'static str> {
    let own = module.starts_with(&["lock", "tasks", "contender"].map(str::to_owned));
    let may_name = || own || *module == START_LOOPS;
    let names = path.iter().any(|part| part == LOOP);
    (names && !may_name()).then_some("only dispatch starts a loop of attempts")
}

#[test]
fn file_in_src_names_only_lower_modules() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let sources = read_all(&src);
    let exports = Exports::of(&sources);
    let product = sources.iter().filter(|source| !source.is_test());
    let broken: Vec<_> = product
        .flat_map(|source| violations(source, &exports))
        .collect();
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

/// A folder that no rule names would be a part of the files beside the rooms.
#[test]
fn folder_beside_rooms_is_room() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    for rooms in ROOMS {
        let folder = rooms
            .module
            .iter()
            .fold(src.clone(), |at, part| at.join(part));
        let entries = std::fs::read_dir(folder).expect("a folder");
        let folders = entries.map(|it| it.expect("an entry").path());
        let found: BTreeSet<_> = folders
            .filter(|path| path.is_dir())
            .filter_map(|path| path.file_name()?.to_str().map(String::from))
            .collect();
        let named = rooms.groups.concat();
        let named: BTreeSet<_> = named
            .iter()
            .filter(|it| **it != BESIDE)
            .map(|it| (*it).to_owned())
            .collect();
        assert_eq!(found, named, "ROOMS of {}", rooms.module.join("/"));
    }
}

#[test]
fn module_in_src_belongs_to_layer() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    for source in read_all(&src) {
        let above_all = source.module.is_empty() || source.module == ["connect"];
        let module = source.module.join("/");
        assert!(
            above_all || layer_of(&source.module).is_some(),
            "src/{module}: add it to LAYERS"
        );
    }
}

#[test]
fn import_cycle_spans_at_most_three_files() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let sources = read_all(&src);
    let imports = Imports::of(&sources);
    let cycles = imports.cycles();
    let too_large: Vec<_> = cycles
        .iter()
        .filter(|cycle| cycle.files.len() > LARGEST_CYCLE)
        .map(Cycle::describe)
        .collect();
    assert!(too_large.is_empty(), "\n{}", too_large.join("\n"));
}

#[test]
fn import_cycle_of_engine_stays_in_one_module() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let sources = read_all(&src);
    let imports = Imports::of(&sources);
    let cycles = imports.cycles();
    let engine = cycles.iter().filter(|cycle| {
        cycle.files.iter().all(|file| file[0] == "lock") && !cycle.is_in_one_module()
    });
    let engine: Vec<_> = engine.map(Cycle::describe).collect();
    assert!(engine.is_empty(), "\n{}", engine.join("\n"));
}

mod walker {
    use super::*;

    fn module(path: &str) -> Vec<String> {
        path.split('/')
            .filter(|part| !part.is_empty())
            .map(String::from)
            .collect()
    }

    /// Returns the violations of `text` as the content of `src/<at>`, in a crate like this one.
    fn broken(at: &str, text: &str) -> Vec<String> {
        let crate_root = "pub use backend::{Backend, Memory, redis::RedisBackend}; pub use lock::LockManager; pub use key::LockKey;";
        let sources = [
            ("", crate_root),
            (
                "backend",
                "pub use contract::{Backend, Acquired}; pub use memory::Memory;",
            ),
            ("backend/contract", ""),
            ("backend/memory", ""),
            ("backend/redis", "pub use builder::RedisBackend;"),
            ("backend/redis/builder", ""),
            ("lock", ""),
            ("key", ""),
        ];
        let sources = sources.map(|(at, text)| Source::parse(&module(at), text));
        violations(&Source::parse(&module(at), text), &Exports::of(&sources))
    }

    #[test]
    fn path_above_or_beside_layer_is_reported() {
        for (at, text) in [
            ("key", "use crate::Error;"),
            ("key", "use crate::lock::LockManager;"),
            ("backend/memory", "use super::super::lock::LockManager;"),
            ("lock/lane", "use crate::{LockKey, Memory};"),
            ("lock/lane", "use crate::backend::{Acquired, redis};"),
            (
                "lock/lane",
                "fn f() { crate::backend::memory::Memory::new(); }",
            ),
            ("lock", "use crate::RedisBackend as Store;"),
            ("lock", "use super::*;"),
            ("layer/service", "use crate::backend::Backend;"),
            ("layer/service", "use crate::{LockKey, Backend};"),
            ("extract", "type B = dyn crate::Backend;"),
            ("extract", "type V = <M as crate::Backend>::V;"),
        ] {
            assert_eq!(broken(at, text).len(), 1, "{at}: {text}");
        }
    }

    #[test]
    fn room_above_its_own_is_reported() {
        for (at, text) in [
            ("layer/keys/by_path", "use crate::layer::config::LockLayer;"),
            ("layer/keys/by_path", "use super::super::body::LockBody;"),
            ("layer/rejection/form", "use crate::layer::config::Options;"),
            ("layer/config/options", "use crate::layer::scope::Watch;"),
            ("layer/config", "use super::service::LockService;"),
            (
                "layer/scope/watch",
                "use crate::layer::body_first::BodyFirst;",
            ),
            ("layer/service", "fn f() { super::body_first::f() }"),
            (
                "backend/redis/connection/dial/spread",
                "use crate::backend::redis::connection::handle::Connection;",
            ),
        ] {
            assert_eq!(broken(at, text).len(), 1, "{at}: {text}");
        }
        for (at, text) in [
            (
                "layer",
                "mod body_first; pub use self::body_first::BodyFirst;",
            ),
            (
                "layer/body_first/future",
                "use crate::layer::{body, keys, scope};",
            ),
            ("layer/scope/watch", "use crate::layer::{body, config};"),
            (
                "layer/service",
                "use super::{body::LockBody, scope::Watch};",
            ),
            (
                "layer/config/options",
                "use super::settings; use crate::layer::keys;",
            ),
        ] {
            assert_eq!(broken(at, text), Vec::<String>::new(), "{at}: {text}");
        }
    }

    #[test]
    fn foreign_path_outside_its_place_is_reported() {
        for (at, text) in [
            ("lock/lane", "use http::Request;"),
            (
                "lock/lane",
                "async fn f() { select! { r = tower::f() => {} } }",
            ),
            ("backend/memory", "use axum as web;"),
            ("backend/memory", "fn f() -> redis::Value { todo() }"),
            ("connect", "use deadpool_redis::{Pool};"),
            ("backend/memory", "use rustls::RootCertStore;"),
            ("lock/lane", "use std::{fmt, time::{Duration, Instant}};"),
            ("lock/clock", "use std::time::Instant;"),
            ("layer/layer", "fn f() { tokio::spawn(async {}); }"),
            ("backend/redis/link", "use tokio::task::JoinSet;"),
            ("connect", "use std::thread;"),
        ] {
            assert_eq!(broken(at, text).len(), 1, "{at}: {text}");
        }
    }

    #[test]
    fn topologies_outside_their_files_are_reported() {
        let texts = [
            "fn f(it: Other) { match it { Targets::Server(_) => {} } }",
            "use crate::backend::redis::connection::Targets;",
            "use super::super::connection::{Target, Targets as Other};",
        ];
        for text in texts {
            for at in ["backend/redis/builder", "backend/redis/topology/route"] {
                assert_eq!(broken(at, text).len(), 1, "{at}: {text}");
            }
            for at in NAME_TOPOLOGIES {
                // The re-exports are missing here, so the rule of the rooms meets other paths.
                let broken = broken(at, text);
                let is_of_topologies = |it: &String| it.contains("topologies");
                assert!(!broken.iter().any(is_of_topologies), "{at}: {broken:?}");
            }
        }
        let re_exports = "mod server; pub(crate) use server::{Target, Targets};";
        assert_eq!(
            broken("backend/redis/connection", re_exports),
            Vec::<String>::new()
        );
    }

    #[test]
    fn resolved_waiter_outside_dispatch_is_reported() {
        let calls = [
            "fn f(waiter: &Waiter) { if x { drop(waiter.answer(Ok(given))); } }",
            "fn f(report: Report) { drop(report.send(Ok(()))); }",
            "fn f(grant: &Grant) { grant.wake_listeners(); }",
        ];
        for text in calls {
            assert_eq!(broken("lock/lane/holding", text).len(), 1, "{text}");
            assert_eq!(broken("lock/tasks/dispatch", text), Vec::<String>::new());
            assert_eq!(broken("layer/body", text), Vec::<String>::new());
        }
        let own = "fn f() { send(x); self.send } fn send() {} #[cfg(test)] mod t { fn f() { x.send(1) } }";
        assert_eq!(broken("lock/lane/holding", own), Vec::<String>::new());
    }

    #[test]
    fn guard_lost_outside_lane_is_reported() {
        let text = "fn f(grant: &Grant) { grant.lose(reason); }";
        assert_eq!(broken("lock/tasks/dispatch", text).len(), 1);
        assert_eq!(broken("lock/lane/holding", text), Vec::<String>::new());
        assert_eq!(broken("lock/lease/grant", text), Vec::<String>::new());
    }

    #[test]
    fn loop_of_attempts_outside_its_files_is_reported() {
        for text in [
            "use super::contender::AcquireLoop;",
            "fn f() { crate::lock::contender::AcquireLoop::new(engine).spawn(); }",
        ] {
            for at in ["lock/tasks/watchdog", "lock/lane/holding", "layer/service"] {
                assert!(!broken(at, text).is_empty(), "{at}: {text}");
            }
            for at in ["lock/tasks/dispatch", "lock/tasks/contender"] {
                assert_eq!(broken(at, text), Vec::<String>::new(), "{at}: {text}");
            }
        }
    }

    #[test]
    fn allowed_path_is_not_reported() {
        for (at, text) in [
            (
                "backend/redis/link",
                "use redis::{Cmd, aio::Multiplexed}; use crate::{LockKey, backend::Backend};",
            ),
            (
                "lock/lane",
                "use super::lease::Lease; use crate::backend::{Acquired, Backend}; use crate::LockKey;",
            ),
            (
                "layer/service",
                "use http::Request; use crate::{LockKey, LockManager}; use super::key;",
            ),
            ("connect", "use crate::{LockManager, Memory, RedisBackend};"),
            ("task", "use tokio::runtime::Handle;"),
            ("lock/clock/suspended", "use std::time::Instant;"),
            ("backend/redis/link", "use tokio::task::yield_now;"),
            (
                "lock/lane",
                "/// [`Memory`](crate::Memory), redis::Value\nconst S: &str = \"http::Request\";",
            ),
            (
                "lock/lane",
                "#[cfg(test)] mod tests { use crate::Memory; use http::Request; }",
            ),
            (
                "lock/lane",
                "fn f(spawner: Spawner) { spawner.spawn(async {}); } use tokio::time::Instant;",
            ),
        ] {
            assert_eq!(broken(at, text), Vec::<String>::new(), "{at}: {text}");
        }
    }
}
