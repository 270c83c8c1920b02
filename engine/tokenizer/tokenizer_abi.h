// The C border of the Rust library in rust/ (rust/src/lib.rs is the other side). Private to this folder: everybody else
// uses tokenizer.h and chat_template.h.
// Every function that returns SlipwayTokenizerCode fills `error` when the code is not kOk, and `out` when it is; both
// are owned by the caller and freed with the matching function. Handles are immutable after loading, so all functions
// that take one may run at once. No panic crosses the border.
#ifndef SLIPWAY_ENGINE_TOKENIZER_TOKENIZER_ABI_H_
#define SLIPWAY_ENGINE_TOKENIZER_TOKENIZER_ABI_H_

#include <cstddef>
#include <cstdint>

extern "C" {

struct SlipwayBytes {
  uint8_t* data;
  size_t size;
};
void slipway_bytes_free(SlipwayBytes bytes);

enum SlipwayTokenizerCode : int { kSlipwayOk = 0, kSlipwayInvalid = 1, kSlipwayPanicked = 2 };

struct SlipwayTokenizerHandle;
SlipwayTokenizerCode slipway_tokenizer_load(const uint8_t* json, size_t size, SlipwayTokenizerHandle** out,
                                            SlipwayBytes* error);
void slipway_tokenizer_free(SlipwayTokenizerHandle* tokenizer);

// `offsets` holds 2 * count entries, begin and end of each token's bytes in the input; null unless asked for.
struct SlipwayEncoding {
  uint32_t* ids;
  size_t* offsets;
  size_t count;
};
SlipwayTokenizerCode slipway_tokenizer_encode(const SlipwayTokenizerHandle* tokenizer, const uint8_t* text, size_t size,
                                              bool add_special_tokens, bool with_offsets, SlipwayEncoding* out,
                                              SlipwayBytes* error);
void slipway_encoding_free(SlipwayEncoding encoding);

SlipwayTokenizerCode slipway_tokenizer_decode(const SlipwayTokenizerHandle* tokenizer, const uint32_t* ids,
                                              size_t count, bool skip_special_tokens, SlipwayBytes* out,
                                              SlipwayBytes* error);
// JSON: {"size": highest id + 1, "added": [{"id": .., "content": .., "special": ..}, ..]}.
SlipwayTokenizerCode slipway_tokenizer_describe(const SlipwayTokenizerHandle* tokenizer, SlipwayBytes* out,
                                                SlipwayBytes* error);
// -1 when there is no such token.
int64_t slipway_tokenizer_token_to_id(const SlipwayTokenizerHandle* tokenizer, const uint8_t* token, size_t size);
SlipwayTokenizerCode slipway_tokenizer_id_to_token(const SlipwayTokenizerHandle* tokenizer, uint32_t id,
                                                   SlipwayBytes* out, SlipwayBytes* error);

struct SlipwayTemplateHandle;
SlipwayTokenizerCode slipway_template_compile(const uint8_t* source, size_t size, SlipwayTemplateHandle** out,
                                              SlipwayBytes* error);
void slipway_template_free(SlipwayTemplateHandle* chat_template);
// `variables` is a JSON object. Its member "slipway_now", if there is one, is the time for strftime_now: seconds since
// 1970, shown in UTC.
SlipwayTokenizerCode slipway_template_render(const SlipwayTemplateHandle* chat_template, const uint8_t* variables,
                                             size_t size, SlipwayBytes* out, SlipwayBytes* error);
}

#endif  // SLIPWAY_ENGINE_TOKENIZER_TOKENIZER_ABI_H_
