// Status plumbing: return early on error, and add context when an error crosses a layer.
//
//   SLIPWAY_RETURN_IF_ERROR(file.Sync());
//   SLIPWAY_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
//   return Annotate(status, "restoring step 1200");     // "restoring step 1200: <message>", same code and payloads
#ifndef SLIPWAY_COMMON_STATUS_MACROS_H_
#define SLIPWAY_COMMON_STATUS_MACROS_H_

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define SLIPWAY_CONCAT_INNER_(a, b) a##b
#define SLIPWAY_CONCAT_(a, b) SLIPWAY_CONCAT_INNER_(a, b)

#define SLIPWAY_RETURN_IF_ERROR(expr)                                     \
  do {                                                                    \
    if (::absl::Status slipway_status_ = (expr); !slipway_status_.ok()) { \
      return slipway_status_;                                             \
    }                                                                     \
  } while (false)

#define SLIPWAY_ASSIGN_OR_RETURN(lhs, expr) \
  SLIPWAY_ASSIGN_OR_RETURN_IMPL_(SLIPWAY_CONCAT_(slipway_statusor_, __LINE__), lhs, expr)
#define SLIPWAY_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                                   \
  if (!var.ok()) return std::move(var).status();       \
  lhs = std::move(var).value()

namespace slipway {

inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(std::string(context), ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

}  // namespace slipway

#endif  // SLIPWAY_COMMON_STATUS_MACROS_H_
