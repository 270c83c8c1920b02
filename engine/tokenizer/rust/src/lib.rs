//! Hugging Face tokenizers and chat templates behind a C ABI. `../tokenizer_abi.h` is the other side of this file and
//! documents each function; both change together.
//!
//! Nothing unwinds into C++: every entry point goes through `border::guard`.

mod border;
mod chat_template;
mod python_values;
mod tokenizer;

use border::{guard, Bytes, Code};
use chat_template::ChatTemplate;
use std::slice;
use tokenizer::{Encoding, LoadedTokenizer};

/// # Safety
/// `data` points to `size` readable bytes, or `size` is 0.
unsafe fn view<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 {
        &[]
    } else {
        slice::from_raw_parts(data, size)
    }
}

unsafe fn text<'a>(data: *const u8, size: usize, what: &str) -> Result<&'a str, String> {
    std::str::from_utf8(view(data, size)).map_err(|e| format!("{what} is not valid UTF-8 at byte {}", e.valid_up_to()))
}

#[no_mangle]
pub unsafe extern "C" fn slipway_bytes_free(bytes: Bytes) {
    bytes.free();
}

#[no_mangle]
pub unsafe extern "C" fn slipway_tokenizer_load(
    json: *const u8,
    size: usize,
    out: *mut *mut LoadedTokenizer,
    error: *mut Bytes,
) -> Code {
    guard(error, || {
        let loaded = LoadedTokenizer::from_json(view(json, size))?;
        *out = Box::into_raw(Box::new(loaded));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn slipway_tokenizer_free(tokenizer: *mut LoadedTokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn slipway_tokenizer_encode(
    tokenizer: *const LoadedTokenizer,
    data: *const u8,
    size: usize,
    add_special_tokens: bool,
    with_offsets: bool,
    out: *mut Encoding,
    error: *mut Bytes,
) -> Code {
    guard(error, || {
        let input = text(data, size, "the text to encode")?;
        *out = (*tokenizer).encode(input, add_special_tokens, with_offsets)?;
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn slipway_encoding_free(encoding: Encoding) {
    encoding.free();
}

#[no_mangle]
pub unsafe extern "C" fn slipway_tokenizer_decode(
    tokenizer: *const LoadedTokenizer,
    ids: *const u32,
    count: usize,
    skip_special_tokens: bool,
    out: *mut Bytes,
    error: *mut Bytes,
) -> Code {
    guard(error, || {
        let ids = if count == 0 { &[] } else { slice::from_raw_parts(ids, count) };
        *out = Bytes::new((*tokenizer).decode(ids, skip_special_tokens)?.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn slipway_tokenizer_describe(
    tokenizer: *const LoadedTokenizer,
    out: *mut Bytes,
    error: *mut Bytes,
) -> Code {
    guard(error, || {
        *out = Bytes::new((*tokenizer).describe().into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn slipway_tokenizer_token_to_id(
    tokenizer: *const LoadedTokenizer,
    token: *const u8,
    size: usize,
) -> i64 {
    let lookup = || std::str::from_utf8(view(token, size)).ok().and_then(|t| (*tokenizer).token_to_id(t));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(lookup)).ok().flatten().map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn slipway_tokenizer_id_to_token(
    tokenizer: *const LoadedTokenizer,
    id: u32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> Code {
    guard(error, || {
        let token = (*tokenizer).id_to_token(id).ok_or_else(|| format!("the tokenizer has no token with id {id}"))?;
        *out = Bytes::new(token.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn slipway_template_compile(
    source: *const u8,
    size: usize,
    out: *mut *mut ChatTemplate,
    error: *mut Bytes,
) -> Code {
    guard(error, || {
        let compiled = ChatTemplate::compile(text(source, size, "the chat template")?)?;
        *out = Box::into_raw(Box::new(compiled));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn slipway_template_free(template: *mut ChatTemplate) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

#[no_mangle]
pub unsafe extern "C" fn slipway_template_render(
    template: *const ChatTemplate,
    variables: *const u8,
    size: usize,
    out: *mut Bytes,
    error: *mut Bytes,
) -> Code {
    guard(error, || {
        *out = Bytes::new((*template).render(view(variables, size))?.into_bytes());
        Ok(())
    })
}
