//! Durations and sizes as an operator writes them.

/// `"250ms"`, `"2s"`, `"1m 30s"`.
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::units::Millis;

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Millis, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "must be a duration in quotes, such as \"250ms\", \"2s\" or \"1m 30s\"")]
        enum Written {
            Text(String),
        }
        let Written::Text(text) = Written::deserialize(input)?;
        match humantime::parse_duration(&text) {
            Ok(duration) => Ok(Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))),
            Err(_) => Err(serde::de::Error::custom(format!(
                "{text:?} is not a duration such as \"250ms\", \"2s\" or \"1m 30s\""
            ))),
        }
    }

    pub fn serialize<S: Serializer>(value: &Millis, output: S) -> Result<S::Ok, S::Error> {
        output.collect_str(&humantime::format_duration(Duration::from_millis(value.0)))
    }
}

/// `"64KiB"`, `"1MiB"`.
pub(super) mod size {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "must be a size in quotes, such as \"64KiB\" or \"1MiB\"")]
        enum Written {
            Text(String),
        }
        let Written::Text(text) = Written::deserialize(input)?;
        read(&text)
    }

    pub fn read<E: serde::de::Error>(text: &str) -> Result<u64, E> {
        match text.parse::<bytesize::ByteSize>() {
            Ok(size) => Ok(size.as_u64()),
            Err(_) => Err(E::custom(format!("{text:?} is not a size such as \"64KiB\" or \"1MiB\""))),
        }
    }

    /// Exact, in the largest unit that divides it.
    pub fn serialize<S: Serializer>(value: &u64, output: S) -> Result<S::Ok, S::Error> {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let whole = units.iter().find(|(unit, _)| *value > 0 && value.is_multiple_of(*unit));
        let (unit, name) = whole.copied().unwrap_or((1, "B"));
        output.collect_str(&format_args!("{}{name}", value / unit))
    }
}

/// A number, or a size: `100000`, `"1MiB"`.
pub(super) mod amount {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "must be a whole number, or a size in quotes such as \"64KiB\" or \"1MiB\"")]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(input)? {
            Written::Number(number) => Ok(number),
            Written::Text(text) => super::size::read(&text),
        }
    }

    pub fn serialize<S: Serializer>(value: &u64, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_u64(*value)
    }
}

/// The same where nothing may stand, or `null`.
macro_rules! optional {
    ($name:ident, $value:ty, $written:literal) => {
        pub(super) mod $name {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            #[derive(Deserialize, Serialize)]
            #[serde(transparent)]
            struct Written(#[serde(with = $written)] $value);

            pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<$value>, D::Error> {
                Ok(Option::<Written>::deserialize(input)?.map(|Written(value)| value))
            }

            pub fn serialize<S: Serializer>(value: &Option<$value>, output: S) -> Result<S::Ok, S::Error> {
                value.map(Written).serialize(output)
            }
        }
    };
}

optional!(optional_duration, crate::units::Millis, "super::duration");
optional!(optional_size, u64, "super::size");
optional!(optional_amount, u64, "super::amount");

/// A duration, for the schema.
#[cfg(feature = "schema")]
pub(super) struct Duration;

/// A size, for the schema.
#[cfg(feature = "schema")]
pub(super) struct Size;

/// A number or a size, for the schema.
#[cfg(feature = "schema")]
pub(super) struct Amount;

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    impl JsonSchema for super::Duration {
        fn schema_name() -> Cow<'static, str> {
            "Duration".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({"type": "string", "description": "Such as `250ms`, `2s` or `1m 30s`.", "pattern": "^\\s*[0-9]"})
        }
    }

    impl JsonSchema for super::Size {
        fn schema_name() -> Cow<'static, str> {
            "Size".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({"type": "string", "description": "Such as `64KiB` or `1MiB`.", "pattern": "^\\s*[0-9]"})
        }
    }

    impl JsonSchema for super::Amount {
        fn schema_name() -> Cow<'static, str> {
            "Amount".into()
        }

        fn json_schema(types: &mut SchemaGenerator) -> Schema {
            let size = types.subschema_for::<super::Size>();
            json_schema!({"description": "A number or a size.", "anyOf": [{"type": "integer", "minimum": 0}, size]})
        }
    }
}
