#include "engine/train/guarded_call.h"

#include <c10/util/Exception.h>

#include <new>

#include "absl/strings/cord.h"
#include "common/str_cat.h"
#include "engine/comm/communicator.h"

namespace slipway::engine::train {
namespace {

std::string FirstLine(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

bool Contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool LooksLikeOutOfMemory(std::string_view text) {
  return Contains(text, "out of memory") || Contains(text, "can't allocate memory") ||
         Contains(text, "CUBLAS_STATUS_ALLOC_FAILED");
}

}  // namespace

absl::Status WithCause(absl::Status status, std::string_view cause_class) {
  status.SetPayload(kCausePayload, absl::Cord(std::string(cause_class)));
  return status;
}

absl::Status StatusFromException(std::string_view what) {
  try {
    throw;
  } catch (const comm::CommError& e) {
    return WithCause(absl::UnavailableError(StrCat(what, ": ", FirstLine(e.what()))), "NETWORK");
  } catch (const std::bad_alloc&) {
    return WithCause(absl::ResourceExhaustedError(StrCat(what, ": out of host memory")), "OOM");
  } catch (const c10::Error& e) {
    const std::string text = FirstLine(e.what_without_backtrace());
    if (LooksLikeOutOfMemory(text)) return WithCause(absl::ResourceExhaustedError(StrCat(what, ": ", text)), "OOM");
    return WithCause(absl::InternalError(StrCat(what, ": ", text)), "INTERNAL");
  } catch (const std::exception& e) {
    const std::string text = FirstLine(e.what());
    if (LooksLikeOutOfMemory(text)) return WithCause(absl::ResourceExhaustedError(StrCat(what, ": ", text)), "OOM");
    return WithCause(absl::InternalError(StrCat(what, ": ", text)), "INTERNAL");
  } catch (...) {
    return WithCause(absl::InternalError(StrCat(what, ": an exception of unknown type")), "INTERNAL");
  }
}

}  // namespace slipway::engine::train
