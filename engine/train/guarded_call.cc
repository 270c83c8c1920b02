#include "engine/train/guarded_call.h"

#include <c10/util/Exception.h>

#include <new>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/comm/communicator.h"

namespace slipway::engine::train {
namespace {

std::string FirstLine(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

bool LooksLikeOutOfMemory(std::string_view text) {
  return absl::StrContains(text, "out of memory") || absl::StrContains(text, "can't allocate memory") ||
         absl::StrContains(text, "CUBLAS_STATUS_ALLOC_FAILED");
}

}  // namespace

absl::Status WithCause(absl::Status status, std::string_view cause_class) {
  status.SetPayload(kCausePayload, absl::Cord(cause_class));
  return status;
}

absl::Status StatusFromException(std::string_view what) {
  try {
    throw;
  } catch (const comm::CommError& e) {
    return WithCause(absl::UnavailableError(absl::StrCat(what, ": ", FirstLine(e.what()))), "NETWORK");
  } catch (const std::bad_alloc&) {
    return WithCause(absl::ResourceExhaustedError(absl::StrCat(what, ": out of host memory")), "OOM");
  } catch (const c10::Error& e) {
    const std::string text = FirstLine(e.what_without_backtrace());
    if (LooksLikeOutOfMemory(text)) return WithCause(absl::ResourceExhaustedError(absl::StrCat(what, ": ", text)), "OOM");
    return WithCause(absl::InternalError(absl::StrCat(what, ": ", text)), "INTERNAL");
  } catch (const std::exception& e) {
    const std::string text = FirstLine(e.what());
    if (LooksLikeOutOfMemory(text)) return WithCause(absl::ResourceExhaustedError(absl::StrCat(what, ": ", text)), "OOM");
    return WithCause(absl::InternalError(absl::StrCat(what, ": ", text)), "INTERNAL");
  } catch (...) {
    return WithCause(absl::InternalError(absl::StrCat(what, ": an exception of unknown type")), "INTERNAL");
  }
}

}  // namespace slipway::engine::train
