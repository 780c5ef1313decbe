//! The keys of a lock on the server, compared with the reference.

use std::collections::{BTreeMap, HashMap};

use redis::{Connection, Value};

use super::model::{Body, Mode, Model, Place, Queue, limit_of, mode_of};
use super::scripts::Names;

type Fields = BTreeMap<String, String>;

fn fields_of(body: &Body) -> Fields {
    let deadline = |(name, until): (&String, &i64)| (name.clone(), until.to_string());
    match body {
        Body::Held { holder, .. } => Fields::from([(holder.clone(), "1".to_owned())]),
        Body::Shared(leases) => {
            let mode = ("mode".to_owned(), "shared".to_owned());
            leases.iter().map(deadline).chain([mode]).collect()
        }
        Body::Permits(permits) => {
            let mode = ("mode".to_owned(), "permits".to_owned());
            let next = ("next".to_owned(), permits.next.to_string());
            let leases = permits.leases.iter().map(deadline);
            leases.chain([mode, next]).collect()
        }
        Body::Free | Body::Foreign => Fields::new(),
    }
}

/// Panics if the body of a lock breaks a rule, whatever the reference expects: it has a TTL. Either one exclusive lease
/// holds it, or several of one other mode do, the last of which ends with the body.
fn assert_rules(fields: &Fields, expires: Option<i64>, now: i64) {
    let expires = expires.expect("a TTL");
    let mode = match fields.get("mode").map(String::as_str) {
        None => None,
        Some("shared") => Some(Mode::Shared),
        Some("permits") => Some(Mode::Permits),
        other => panic!("{other:?}"),
    };
    let names = fields
        .keys()
        .filter(|name| *name != "mode" && *name != "next");
    let names: Vec<_> = names.collect();
    assert!(names.iter().all(|it| mode_of(it) == mode), "{fields:?}");
    if mode.is_none() {
        assert_eq!(names.len(), 1, "{fields:?}");
        return;
    }
    let deadlines = names.iter().map(|name| fields[*name].parse::<i64>());
    let deadlines: Vec<_> = deadlines.map(Result::unwrap).collect();
    if let Some(next) = fields.get("next") {
        let next = next.parse::<i64>().unwrap();
        assert!(deadlines.iter().all(|at| *at >= next), "{fields:?}");
    }
    // Permits that have expired are removed when they are counted.
    let latest = deadlines.into_iter().max().unwrap_or(now);
    assert!((latest - expires).abs() <= 2, "{fields:?} until {expires}");
}

/// Panics if the keys of a lock differ from the reference, whose script has just begun.
pub(crate) fn assert_stored(connection: &mut Connection, names: Names, model: &Model) {
    let mut command = |words: &[&str]| -> Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query(connection).unwrap()
    };
    let Names { body, queue, .. } = names;
    let now = model.now;
    let ttl = |reply| match reply {
        Value::Int(ttl @ 0..) => Some(now + ttl),
        _ => None,
    };
    if let Some(until) = model.body.until() {
        let fields = redis::from_redis_value(command(&["HGETALL", body])).unwrap();
        let expires = ttl(command(&["PTTL", body]));
        assert_rules(&fields, expires, now);
        assert_eq!(fields, fields_of(&model.body));
        assert_eq!(expires, Some(until));
    } else {
        let exists = command(&["EXISTS", body]);
        assert_eq!(exists, Value::Int(i64::from(model.body == Body::Foreign)));
    }
    if model.foreign_queue {
        return;
    }
    let members = command(&["ZRANGE", queue, "0", "-1", "WITHSCORES"]);
    let members: Vec<(String, f64)> = redis::from_redis_value(members).unwrap();
    let scores: HashMap<_, _> = members.iter().cloned().collect();
    #[allow(clippy::cast_possible_truncation)]
    let score = |member: &str| scores.get(member).map(|score| *score as i64);
    for (name, ticket) in members
        .iter()
        .filter(|(name, _)| !name.starts_with(['!', '?', '~']))
    {
        // A fraction of two bytes: no other value is near.
        let limit = ticket.fract() * 65_536.0;
        assert_eq!(limit, limit_of(name).map_or(0.0, |it| it as f64), "{name}");
    }
    let places = members.iter().filter_map(|(member, _)| match &member[..1] {
        "!" | "?" => None,
        "~" => (member == "~").then_some(Place::Others),
        _ => {
            let heard = score(&format!("!{member}"));
            let until = heard.or_else(|| score(&format!("?{member}")));
            Some(Place::Lease {
                lease: member.clone(),
                listens: heard.is_some(),
                until: until.expect("a deadline"),
            })
        }
    });
    let queue = Queue {
        places: places.collect(),
        turn: score("~!"),
        due: score("~@"),
        expires: ttl(command(&["PTTL", queue])),
    };
    let leases = queue
        .places
        .iter()
        .filter(|it| **it != Place::Others)
        .count();
    let marks = ["~", "~!", "~@"]
        .iter()
        .filter(|it| scores.contains_key(**it));
    assert_eq!(2 * leases + marks.count(), members.len(), "{members:?}");
    assert_eq!(queue, model.queue);
}
