//! The keys of a lock on the server, compared with the reference.

use std::collections::HashMap;

use redis::{Connection, Value};

use super::model::{Body, Model, Place, Queue};
use super::scripts::Names;

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
    if let Body::Held { holder, until } = &model.body {
        let fields: Vec<String> = redis::from_redis_value(command(&["HGETALL", body])).unwrap();
        assert_eq!(fields, [holder.as_str(), "1"]);
        assert_eq!(ttl(command(&["PTTL", body])), Some(*until));
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
