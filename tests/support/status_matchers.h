// gmock matchers for absl::Status and absl::StatusOr (Debian's Abseil has none yet).
//   EXPECT_THAT(Open(path), IsOk());
//   EXPECT_THAT(Open(path), StatusIs(absl::StatusCode::kNotFound, HasSubstr("model.safetensors")));
//   ASSERT_OK_AND_ASSIGN(auto file, Open(path));
#ifndef SLIPWAY_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define SLIPWAY_TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace slipway::testing {

inline const absl::Status& ToStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& ToStatus(const absl::StatusOr<T>& value) {
  return value.status();
}

MATCHER(IsOk, negation ? "is an error" : "is OK") {
  *result_listener << ToStatus(arg).ToString();
  return ToStatus(arg).ok();
}

MATCHER_P2(StatusIs, code, message_matcher, "") {
  *result_listener << ToStatus(arg).ToString();
  return ToStatus(arg).code() == code &&
         ::testing::ExplainMatchResult(message_matcher, std::string(ToStatus(arg).message()), result_listener);
}

}  // namespace slipway::testing

#define SLIPWAY_TEST_CONCAT_INNER_(a, b) a##b
#define SLIPWAY_TEST_CONCAT_(a, b) SLIPWAY_TEST_CONCAT_INNER_(a, b)
#define ASSERT_OK(expr) ASSERT_THAT(expr, ::slipway::testing::IsOk())
#define EXPECT_OK(expr) EXPECT_THAT(expr, ::slipway::testing::IsOk())
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_IMPL_(SLIPWAY_TEST_CONCAT_(slipway_test_statusor_, __LINE__), lhs, expr)
#define ASSERT_OK_AND_ASSIGN_IMPL_(var, lhs, expr) \
  auto var = (expr);                               \
  ASSERT_TRUE(var.ok()) << var.status();           \
  lhs = std::move(var).value()

#endif  // SLIPWAY_TESTS_SUPPORT_STATUS_MATCHERS_H_
