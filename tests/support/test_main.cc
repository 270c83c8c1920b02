#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/rank_process.h"

// Our own main, because a test binary may be started as a rank of one of its own tests.
int main(int argc, char** argv) {
  if (const auto code = slipway::testing::RunAsRank(argc, argv)) return *code;
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
