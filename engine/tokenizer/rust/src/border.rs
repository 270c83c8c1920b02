//! What crosses the C border: owned bytes, result codes, and panics turned into errors.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Bytes owned by this library until `slipway_bytes_free`.
#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    size: usize,
}

impl Bytes {
    pub fn new(bytes: Vec<u8>) -> Self {
        let boxed = bytes.into_boxed_slice();
        let size = boxed.len();
        Bytes { data: Box::into_raw(boxed).cast(), size }
    }

    /// # Safety
    /// `self` came from `new` and is freed once.
    pub unsafe fn free(self) {
        if !self.data.is_null() {
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.data, self.size)));
        }
    }
}

#[repr(C)]
pub enum Code {
    Ok = 0,
    /// The input is at fault.
    Invalid = 1,
    /// A panic: a fault of this library or of one below it.
    Panicked = 2,
}

/// Runs `body`; an error's text, or a panic's, goes to `*error`.
///
/// # Safety
/// `error` points to a `Bytes` that may be overwritten.
pub unsafe fn guard(error: *mut Bytes, body: impl FnOnce() -> Result<(), String>) -> Code {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::Ok,
        Ok(Err(message)) => {
            *error = Bytes::new(message.into_bytes());
            Code::Invalid
        }
        Err(panic) => {
            *error = Bytes::new(panic_text(panic.as_ref()).into_bytes());
            Code::Panicked
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("internal fault: {}", text.unwrap_or("unknown"))
}
