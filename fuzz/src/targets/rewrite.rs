//! What is written into a request body.
//!
//! The first byte says what is to be written, the rest is the body.
//! - A JSON parser reads of the written body what it reads of the body, entry by entry, but for what was to be written.
//! - All of that is written: in place of every value that the key has, or as the first key.
//! - Nothing is written into a body that is no object, or one that names the keys too often; writing nothing changes nothing.
//! - Writing a second time changes nothing more.

use admission_core::request::reference::{Literal, Node};
use admission_core::request::{Changes, Scanner, Slots, rewritten};

use crate::cut;

/// See the head of this file.
pub fn target(data: &[u8]) {
    let Some((choice, body)) = cut::split(data) else { return };
    let changes = Changes {
        priority: (choice & 1 == 1).then(|| i32::from(choice.cast_signed()) * 16_777_216),
        include_usage: choice & 2 == 2,
    };
    let (slots, whole) = slots(body);
    let shown = || String::from_utf8_lossy(body);
    let Some(written) = rewritten(body, &slots, changes) else {
        assert!(!whole || slots.too_many(), "{}", shown());
        return;
    };
    assert!(whole, "written into what is no object: {}", shown());
    assert_eq!(rewritten(body, &slots, Changes::default()).as_deref(), Some(body), "{}", shown());
    if let Some(Node::Object(entries)) = Node::of(body) {
        assert_eq!(Node::of(&written), Some(Node::Object(expected(entries, changes))), "{}", shown());
    }
    let (again, whole) = self::slots(&written);
    assert!(whole, "{}", String::from_utf8_lossy(&written));
    if let Some(twice) = rewritten(&written, &again, changes) {
        assert_eq!(twice, written, "{}", shown());
    }
}

fn slots(body: &[u8]) -> (Slots, bool) {
    let mut scanner = Scanner::default();
    scanner.feed(body);
    (scanner.slots().clone(), scanner.finish().is_ok())
}

type Entries = Vec<(String, Node)>;

/// The entries as they should read.
fn expected(mut entries: Entries, changes: Changes) -> Entries {
    if changes.include_usage {
        set(&mut entries, "stream_options", |options| {
            let mut options = match options {
                Some(Node::Object(options)) => options,
                _ => Entries::new(),
            };
            set(&mut options, "include_usage", |_| literal("true"));
            Node::Object(options)
        });
    }
    if let Some(priority) = changes.priority {
        set(&mut entries, "priority", |_| literal(&priority.to_string()));
    }
    entries
}

/// Puts a value in place of each that a key has, or before all others where it has none.
fn set(entries: &mut Entries, key: &str, value: impl Fn(Option<Node>) -> Node) {
    let mut there = false;
    for (_, old) in entries.iter_mut().filter(|(name, _)| name == key) {
        *old = value(Some(old.clone()));
        there = true;
    }
    if !there {
        entries.insert(0, (key.to_owned(), value(None)));
    }
}

fn literal(value: &str) -> Node {
    Node::Literal(Literal { value: value.to_owned(), spelled: value.to_owned() })
}
