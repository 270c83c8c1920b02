//! Chat templates as `transformers` renders them: Jinja2 with trim_blocks and lstrip_blocks, its `tojson`,
//! `raise_exception` and `strftime_now`, Python's methods on strings and mappings, and Python's way to print values.

use crate::python_values::{to_json, to_text, JsonStyle};
use chrono::DateTime;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior};

/// Instructions one rendering may take: far more than a long chat needs, few enough that a runaway loop ends at once.
const MAX_INSTRUCTIONS: u64 = 20_000_000;
const NAME: &str = "chat_template";
const NOW: &str = "slipway_now";

pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    pub fn compile(source: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(MAX_INSTRUCTIONS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, _, value| out.write_str(&to_text(value)).map_err(Error::from));
        environment.add_filter("tojson", tojson);
        environment.add_filter("string", |value: Value| to_text(&value));
        environment.add_test("iterable", |value: Value| is_kind(&value, &[ValueKind::Iterable]));
        environment.add_test("sequence", |value: Value| is_kind(&value, &[]));
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(|e| describe(&e))?;
        Ok(ChatTemplate { environment })
    }

    /// `variables` is a JSON object, its members the template's variables.
    pub fn render(&self, variables: &[u8]) -> Result<String, String> {
        let variables: serde_json::Value =
            serde_json::from_slice(variables).map_err(|e| format!("the template's variables: {e}"))?;
        let template = self.environment.get_template(NAME).map_err(|e| describe(&e))?;
        template.render(Value::from_serialize(&variables)).map_err(|e| describe(&e))
    }
}

/// The error with its line, and the chain of causes below it.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text += &format!(": {inner}");
        cause = inner.source();
    }
    text
}

/// In Python, strings and mappings count as sequences and iterables too, and none does not.
fn is_kind(value: &Value, more: &[ValueKind]) -> bool {
    let kind = value.kind();
    matches!(kind, ValueKind::String | ValueKind::Seq | ValueKind::Map) || more.contains(&kind)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("the template refuses: {message}")))
}

/// The date in the variable `NOW` (seconds since 1970, UTC) if it is there, else the clock's.
fn strftime_now(state: &State, format: String) -> Result<String, Error> {
    use std::fmt::Write;
    let fixed = state.lookup(NOW).and_then(|now| i64::try_from(now).ok()).and_then(|now| DateTime::from_timestamp(now, 0));
    let now = fixed.map_or_else(|| chrono::Local::now().naive_local(), |now| now.naive_utc());
    let mut out = String::new();
    write!(out, "{}", now.format(&format))
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: bad format '{format}'")))?;
    Ok(out)
}

fn tojson(value: Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")?.filter(|v| !v.is_none()) {
        None => None,
        Some(v) if v.kind() == ValueKind::String => v.as_str().map(str::to_owned),
        Some(v) => Some(" ".repeat(usize::try_from(v).unwrap_or(0).min(64))),
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings")),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let style = JsonStyle {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    to_json(&value, &style)
}

/// `{% generation %}` marks what an assistant wrote and prints nothing. It becomes an `if` that always holds, which keeps
/// its white-space control and its scoping.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = rest.find("{%") {
        let Some(length) = rest[begin..].find("%}") else { break };
        let inside = &rest[begin + 2..begin + length];
        let body = inside.trim_start_matches(['-', '+']);
        let left = &inside[..inside.len() - body.len()];
        let name = body.trim_end_matches(['-', '+']);
        let right = &body[name.len()..];
        out.push_str(&rest[..begin]);
        match name.trim() {
            "generation" => out.push_str(&format!("{{%{left} if true {right}%}}")),
            "endgeneration" => out.push_str(&format!("{{%{left} endif {right}%}}")),
            _ => out.push_str(&rest[begin..begin + length + 2]),
        }
        rest = &rest[begin + length + 2..];
    }
    out.push_str(rest);
    out
}
