//! Values as Python writes them: chat templates are written for Jinja2, and what it prints must come out letter by letter.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// `str(value)`.
pub fn to_text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => repr(value),
    }
}

/// `repr(value)`; what is no data (namespaces, macros) prints in minijinja's way.
fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "None".into(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.into(),
        ValueKind::Number => number(value),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => match value.try_iter() {
            Ok(items) => format!("[{}]", items.map(|item| repr(&item)).collect::<Vec<_>>().join(", ")),
            Err(_) => value.to_string(),
        },
        ValueKind::Map => match value.try_iter() {
            Ok(keys) => {
                let items = keys.map(|key| {
                    let item = value.get_item(&key).unwrap_or_default();
                    format!("{}: {}", repr(&key), repr(&item))
                });
                format!("{{{}}}", items.collect::<Vec<_>>().join(", "))
            }
            Err(_) => value.to_string(),
        },
        _ => value.to_string(),
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// `repr(float)`: shortest digits that read back the same, scientific below 1e-4 and from 1e16.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

/// `repr(str)`.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// The keyword arguments of `json.dumps` that templates use.
pub struct JsonStyle {
    pub ensure_ascii: bool,
    /// The text of one level; none for a single line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

/// `json.dumps(value, ...)`.
pub fn to_json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(value, style, 0, &mut out)?;
    Ok(out)
}

fn write_json(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > 200 {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested more than 200 levels deep"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&json_number(value)),
        ValueKind::String => json_string(value.as_str().unwrap_or_default(), style.ensure_ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_items(('[', ']'), items.len(), style, depth, out, |i, out| {
                write_json(&items[i], style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_items(('{', '}'), keys.len(), style, depth, out, |i, out| {
                json_key(&keys[i], style.ensure_ascii, out)?;
                out.push_str(&style.key_separator);
                write_json(&value.get_item(&keys[i])?, style, depth + 1, out)
            })?;
        }
        kind => {
            let message = format!("tojson: a value of type {kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

fn write_items(
    brackets: (char, char),
    count: usize,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut write_item: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(brackets.0);
    for i in 0..count {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(style, depth + 1, out);
        write_item(i, out)?;
    }
    if count > 0 {
        new_line(style, depth, out);
    }
    out.push(brackets.1);
    Ok(())
}

fn new_line(style: &JsonStyle, depth: usize, out: &mut String) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        out.push_str(&indent.repeat(depth));
    }
}

fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        text => text.into(),
    }
}

/// Python turns keys that are not strings into strings.
fn json_key(key: &Value, ensure_ascii: bool, out: &mut String) -> Result<(), Error> {
    let text = match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".into(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number => json_number(key),
        kind => {
            let message = format!("tojson: a key of type {kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    };
    json_string(&text, ensure_ascii, out);
    Ok(())
}

fn json_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ensure_ascii && (c as u32) > 0x7e) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
