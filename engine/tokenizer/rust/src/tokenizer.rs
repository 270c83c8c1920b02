//! A `tokenizer.json` ready to encode and decode.

use serde_json::{json, Map, Value};
use tokenizers::Tokenizer;

/// Token ids and, if asked for, the byte range of the input that each came from. Freed by `slipway_encoding_free`.
#[repr(C)]
pub struct Encoding {
    ids: *mut u32,
    /// Pairs (begin, end), `2 * count` entries; null when not asked for.
    offsets: *mut usize,
    count: usize,
}

impl Encoding {
    /// # Safety
    /// `self` came from `LoadedTokenizer::encode` and is freed once.
    pub unsafe fn free(self) {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.ids, self.count)));
        if !self.offsets.is_null() {
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.offsets, 2 * self.count)));
        }
    }
}

pub struct LoadedTokenizer {
    tokenizer: Tokenizer,
}

impl LoadedTokenizer {
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let mut root: Value = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        // Offsets must cover the white space that a token stands for, or a mask made from them would lose tokens. The
        // setting changes offsets only, never ids.
        if let Some(post_processor) = root.get_mut("post_processor") {
            keep_white_space_in_offsets(post_processor);
        }
        // A length limit or padding left in the file by whoever saved it would alter ids; transformers ignores both too.
        if let Some(object) = root.as_object_mut() {
            object.insert("truncation".into(), Value::Null);
            object.insert("padding".into(), Value::Null);
        }
        let tokenizer: Tokenizer = serde_json::from_value(root).map_err(|e| e.to_string())?;
        Ok(LoadedTokenizer { tokenizer })
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool, with_offsets: bool) -> Result<Encoding, String> {
        let encoding = if with_offsets {
            self.tokenizer.encode(text, add_special_tokens)
        } else {
            self.tokenizer.encode_fast(text, add_special_tokens)
        }
        .map_err(|e| e.to_string())?;
        let ids: Box<[u32]> = encoding.get_ids().into();
        let count = ids.len();
        let offsets = if with_offsets {
            let flat: Box<[usize]> = encoding.get_offsets().iter().flat_map(|&(begin, end)| [begin, end]).collect();
            Box::into_raw(flat).cast()
        } else {
            std::ptr::null_mut()
        };
        Ok(Encoding { ids: Box::into_raw(ids).cast(), offsets, count })
    }

    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, String> {
        self.tokenizer.decode(ids, skip_special_tokens).map_err(|e| e.to_string())
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// `{"size": highest id + 1, "added": [{"id":, "content":, "special":}, ...]}`, added tokens by id.
    pub fn describe(&self) -> String {
        let size = self.tokenizer.get_vocab(true).values().max().map_or(0, |&id| u64::from(id) + 1);
        let mut added: Vec<_> = self.tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let added: Vec<Value> = added
            .into_iter()
            .map(|(id, token)| json!({"id": id, "content": token.content, "special": token.special}))
            .collect();
        json!({"size": size, "added": added}).to_string()
    }
}

fn keep_white_space_in_offsets(value: &mut Value) {
    match value {
        Value::Object(object) => visit_object(object),
        Value::Array(items) => items.iter_mut().for_each(keep_white_space_in_offsets),
        _ => {}
    }
}

fn visit_object(object: &mut Map<String, Value>) {
    for (key, value) in object.iter_mut() {
        if key == "trim_offsets" {
            *value = Value::Bool(false);
        } else {
            keep_white_space_in_offsets(value);
        }
    }
}
