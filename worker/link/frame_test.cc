#include "worker/link/frame.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "slipway/worker/v1/worker.pb.h"
#include "tests/support/status_matchers.h"
#include "worker/link/frame_channel.h"

namespace slipway::worker::link {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

TEST(FrameDecoderTest, FramesComeOutWhateverThePieces) {
  std::string stream;
  const std::vector<std::string> payloads = {"", "a", std::string(1000, 'x'), std::string("\0\xff\n", 3)};
  for (const std::string& payload : payloads) ASSERT_OK(AppendFrame(payload, stream));
  for (size_t piece = 1; piece <= stream.size(); piece = piece < 8 ? piece + 1 : piece * 2 + 1) {
    FrameDecoder decoder;
    std::vector<std::string> got;
    for (size_t at = 0; at < stream.size(); at += piece) {
      decoder.Append(std::string_view(stream).substr(at, piece));
      std::string frame;
      while (true) {
        ASSERT_OK_AND_ASSIGN(const bool found, decoder.Next(frame));
        if (!found) break;
        got.push_back(frame);
      }
    }
    EXPECT_EQ(got, payloads) << "in pieces of " << piece;
    EXPECT_EQ(decoder.pending_bytes(), 0u);
  }
}

TEST(FrameDecoderTest, ALengthAboveTheLimitIsRefusedBeforeItsBytesCome) {
  FrameDecoder decoder;
  decoder.Append(std::string_view("\xff\xff\xff\x7f", 4));
  std::string frame;
  EXPECT_THAT(decoder.Next(frame), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2147483647")));
}

TEST(FrameDecoderTest, TooLargeAPayloadIsNotWritten) {
  std::string out = "before";
  EXPECT_THAT(AppendFrame(std::string(kMaxFrameBytes + 1, 'x'), out),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("16777217")));
  EXPECT_EQ(out, "before");
}

// Random bytes never crash the decoder and never make it hold more than it was given.
TEST(FrameDecoderTest, RandomBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    FrameDecoder decoder;
    size_t given = 0;
    for (int piece = 0; piece < 20; ++piece) {
      std::string bytes(random() % 50, '\0');
      // Small lengths are likely, so that frames are found too.
      for (char& byte : bytes) byte = static_cast<char>(random() % 4 == 0 ? random() % 256 : 0);
      decoder.Append(bytes);
      given += bytes.size();
      std::string frame;
      absl::StatusOr<bool> found = decoder.Next(frame);
      while (found.ok() && *found) {
        ASSERT_LE(frame.size(), given);
        slipway::worker::v1::WorkerReport report;
        (void)report.ParseFromString(frame);
        found = decoder.Next(frame);
      }
      if (!found.ok()) break;
      ASSERT_LE(decoder.pending_bytes(), given);
    }
  }
}

class FrameChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    left_.emplace(UniqueFd(fds[0]));
    right_.emplace(UniqueFd(fds[1]));
  }
  std::optional<FrameChannel> left_, right_;
};

TEST_F(FrameChannelTest, AMessageLargerThanTheSocketsBufferArrivesInParts) {
  slipway::worker::v1::WorkerReport report;
  report.set_phase(std::string(4 << 20, 'p'));
  ASSERT_OK(left_->Send(report));
  EXPECT_TRUE(left_->wants_write());
  std::vector<std::string> frames;
  for (int round = 0; round < 1000 && frames.empty(); ++round) {
    ASSERT_OK(right_->Receive(frames));
    ASSERT_OK(left_->Flush());
  }
  ASSERT_EQ(frames.size(), 1u);
  slipway::worker::v1::WorkerReport got;
  ASSERT_TRUE(got.ParseFromString(frames[0]));
  EXPECT_EQ(got.phase(), report.phase());
}

TEST_F(FrameChannelTest, WhatCameBeforeTheEndIsDelivered) {
  slipway::worker::v1::WorkerControl control;
  control.set_sequence(5);
  ASSERT_OK(left_->Send(control));
  left_.reset();
  std::vector<std::string> frames;
  EXPECT_THAT(right_->Receive(frames), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed")));
  EXPECT_EQ(frames.size(), 1u);
  EXPECT_THAT(right_->Send(control), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

}  // namespace
}  // namespace slipway::worker::link
