#include <gmock/gmock.h>
#include <gtest/gtest.h>

// Our own main, so that a test that re-executes itself as a rank (--rank=...) sees its arguments untouched.
int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
