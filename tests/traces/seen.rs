//! A subscriber that remembers the spans and events of this crate, with their fields.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// A span, or an event under its message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) is_span: bool,
    pub(crate) name: String,
    pub(crate) level: &'static str,
    pub(crate) target: String,
}

/// The values of the fields of all spans or events of one kind.
type Values = BTreeMap<&'static str, BTreeSet<String>>;

/// Clones share what they have seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<BTreeMap<Kind, Values>>>);

/// The fields of one span or event.
#[derive(Default)]
struct Fields {
    message: String,
    values: Vec<(&'static str, String)>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.values.push((name, format!("{value:?}"))),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.values.push((field.name(), value.to_owned()));
    }
}

impl Seen {
    pub(crate) fn all(&self) -> MutexGuard<'_, BTreeMap<Kind, Values>> {
        self.0.lock().unwrap()
    }

    fn add(&self, is_span: bool, metadata: &Metadata<'_>, fields: Fields) {
        if !metadata.target().starts_with("tower_lock") {
            return;
        }
        let name = if is_span {
            metadata.name()
        } else {
            &fields.message
        };
        let kind = Kind {
            is_span,
            name: name.to_owned(),
            level: metadata.level().as_str(),
            target: metadata.target().to_owned(),
        };
        let mut all = self.all();
        let values = all.entry(kind).or_default();
        for (name, value) in fields.values {
            values.entry(name).or_default().insert(value);
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if attributes.metadata().name() == "EVALSHA" {
            assert!(attributes.is_root(), "a call serves several requests");
        }
        self.add(true, attributes.metadata(), fields);
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        record.record(&mut fields);
        self.add(true, context.metadata(id).unwrap(), fields);
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.add(false, event.metadata(), fields);
    }
}
