//! Reads a type out of a JSON value, and says where that fails.
//!
//! `serde_path_to_error` does the same for every format, by wrapping what reads each type in code that is compiled again
//! for each: that would be a sixth of the filter's module. Here the place is added to the error on its way out.

use std::fmt;

use serde::de::{
    self, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Value, map};

/// One step into a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To a field of an object.
    Key(String),
    /// To an element of a list.
    Index(usize),
}

/// What is wrong with a value, and where. One pointer, since every read of every type passes it on.
#[derive(Debug)]
pub(super) struct Misfit(Box<Inner>);

#[derive(Debug)]
struct Inner {
    /// The last one first.
    steps: Vec<Step>,
    error: serde_json::Error,
}

impl Misfit {
    /// The steps to the place, and what is wrong there.
    pub(super) fn into_parts(self) -> (Vec<Step>, String) {
        let Inner { mut steps, error } = *self.0;
        steps.reverse();
        (steps, error.to_string())
    }

    fn behind(mut self, step: Step) -> Self {
        self.0.steps.push(step);
        self
    }
}

impl From<serde_json::Error> for Misfit {
    fn from(error: serde_json::Error) -> Self {
        Self(Box::new(Inner { steps: Vec::new(), error }))
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.error.fmt(out)
    }
}

impl std::error::Error for Misfit {}

/// In the words of `serde_json`, which says `null` where serde itself says "unit value".
impl de::Error for Misfit {
    fn custom<T: fmt::Display>(message: T) -> Self {
        serde_json::Error::custom(message).into()
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        serde_json::Error::invalid_type(found, expected).into()
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        serde_json::Error::invalid_value(found, expected).into()
    }
}

/// A value to be read from.
#[derive(Clone, Copy)]
pub(super) struct Placed<'de>(pub(super) &'de Value);

impl<'de> Deserializer<'de> for Placed<'de> {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0 {
            Value::Array(items) => {
                let mut elements = Elements { items, index: 0 };
                let read = visitor.visit_seq(&mut elements)?;
                match elements.index == items.len() {
                    true => Ok(read),
                    false => Err(de::Error::invalid_length(items.len(), &"fewer elements in array")),
                }
            }
            Value::Object(fields) => visitor.visit_map(Fields { fields: fields.iter(), next: None }),
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => Ok(number.deserialize_any(visitor)?),
            Value::String(text) => visitor.visit_borrowed_str(text),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        Ok(self.0.deserialize_enum(name, variants, visitor)?)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier
    }
}

struct Elements<'de> {
    items: &'de [Value],
    index: usize,
}

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        let Some(item) = self.items.get(self.index) else { return Ok(None) };
        let read = seed.deserialize(Placed(item)).map_err(|misfit| misfit.behind(Step::Index(self.index)))?;
        self.index = self.index.saturating_add(1);
        Ok(Some(read))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len().saturating_sub(self.index))
    }
}

struct Fields<'de> {
    fields: map::Iter<'de>,
    /// The field whose key has been read.
    next: Option<(&'de str, &'de Value)>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Misfit> {
        let Some((key, value)) = self.fields.next() else { return Ok(None) };
        self.next = Some((key, value));
        let read = seed.deserialize(key.as_str().into_deserializer());
        read.map(Some).map_err(|misfit: Misfit| misfit.behind(Step::Key(key.clone())))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Misfit> {
        let Some((key, value)) = self.next.take() else { return Err(de::Error::custom("a value without a key")) };
        seed.deserialize(Placed(value)).map_err(|misfit| misfit.behind(Step::Key(key.to_owned())))
    }
}
