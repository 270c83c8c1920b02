#include "engine/format/checkpoint_directory.h"

#include <filesystem>

#include "common/fault_file_system.h"
#include "common/status_macros.h"
#include "engine/format/test_manifest.h"
#include "tests/support/format_files.h"

namespace slipway::engine::format {
namespace {

using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

absl::Status WriteSynced(FileSystem& files, const std::string& path, std::string_view contents) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.OpenForWrite(path, WriteMode::kTruncate));
  SLIPWAY_RETURN_IF_ERROR(file->Append(contents));
  SLIPWAY_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// A whole save, as a trainer does it: on an error it aborts.
absl::Status Save(FileSystem& files, const std::string& root, int64_t step, int64_t epoch = 3,
                  const std::string& job_id = kExampleJob) {
  const auto save = [&]() -> absl::Status {
    SLIPWAY_ASSIGN_OR_RETURN(const std::string directory, BeginCheckpoint(files, root, {step, epoch}));
    SLIPWAY_RETURN_IF_ERROR(WriteSynced(files, JoinPath(directory, "a.safetensors"), ExampleContents('a')));
    SLIPWAY_RETURN_IF_ERROR(WriteSynced(files, JoinPath(directory, "b.safetensors"), ExampleContents('b')));
    return CommitCheckpoint(files, root, ExampleManifest(step, epoch, job_id));
  };
  const absl::Status status = save();
  if (!status.ok()) AbortCheckpoint(files, root, {step, epoch}).IgnoreError();
  return status;
}

std::vector<int64_t> Steps(const CheckpointList& list) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : list.complete) steps.push_back(entry.id.step);
  return steps;
}

const std::vector<LineageEntry> kLineage = ExampleManifest().lineage;  // epoch 3, forked from epoch 2 at step 100

TEST(CheckpointNameTest, RoundTripsAndRefusesOthers) {
  EXPECT_EQ(CheckpointName({120, 3}), "step-00000120-e3");
  EXPECT_EQ(CheckpointName({1234567890, 12}), "step-1234567890-e12");
  for (const CheckpointId id : {CheckpointId{0, 0}, CheckpointId{120, 3}, CheckpointId{1234567890, 12}}) {
    EXPECT_EQ(ParseCheckpointName(CheckpointName(id)), id);
  }
  for (const char* name : {"", "latest", "step-120-e3", "step-00000120", "step-00000120-e", "step-00000120-e-3",
                           "step--0000120-e3", "step-00000120-e03", "step-00000120-e3 ", "xstep-00000120-e3",
                           ".saving-step-00000120-e3", "step-99999999999999999999-e1"}) {
    EXPECT_EQ(ParseCheckpointName(name), std::nullopt) << name;
  }
}

TEST(CheckpointTest, SavesListsAndVerifies) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(CheckpointList list, ListCheckpoints(files, dir.Path("not yet"), kExampleJob));
  EXPECT_THAT(list.complete, IsEmpty());
  ASSERT_OK(Save(files, dir.path(), 120));
  ASSERT_OK(Save(files, dir.path(), 80, 2));
  ASSERT_OK(Save(files, dir.path(), 110, 2));  // epoch 2 went on after epoch 3 had taken over
  ASSERT_OK_AND_ASSIGN(list, ListCheckpoints(files, dir.path(), kExampleJob));
  EXPECT_THAT(Steps(list), ElementsAre(80, 110, 120));
  EXPECT_THAT(list.rejected, IsEmpty());
  EXPECT_EQ(NewestInLineage(list, kLineage)->id.step, 120);
  ASSERT_OK(RemoveCheckpoint(files, dir.path(), {120, 3}));
  ASSERT_OK_AND_ASSIGN(list, ListCheckpoints(files, dir.path(), kExampleJob));
  EXPECT_EQ(NewestInLineage(list, kLineage)->id.step, 80);
  EXPECT_EQ(NewestInLineage(list, {{.epoch = 9, .forked_from = {}}}), nullptr);

  const std::string directory = list.complete[0].directory;
  EXPECT_OK(VerifyChecksums(files, directory, list.complete[0].manifest));
  std::string contents = ExampleContents('b');
  contents[40] ^= 1;
  WriteWhole(JoinPath(directory, "b.safetensors"), contents);
  EXPECT_THAT(VerifyChecksums(files, directory, list.complete[0].manifest),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("b.safetensors")));
  EXPECT_EQ(Save(files, dir.path(), 110, 2).code(), absl::StatusCode::kAlreadyExists);
}

// R1: an incomplete newest directory is never taken for a checkpoint, and needs no manual repair.
TEST(CheckpointTest, IncompleteDirectoriesAreNotListed) {
  PosixFileSystem files;
  const auto path = [](const TempDir& dir, const std::string& name) { return dir.Path("step-00000020-e3/" + name); };
  const std::vector<std::function<void(const TempDir&)>> damages = {
      [&](const TempDir& dir) { std::filesystem::remove(path(dir, "a.safetensors")); },
      [&](const TempDir& dir) { std::filesystem::resize_file(path(dir, "b.safetensors"), 63); },
      [&](const TempDir& dir) { std::filesystem::remove(path(dir, "manifest.json")); },
      [&](const TempDir& dir) { std::filesystem::resize_file(path(dir, "manifest.json"), 100); },
      [&](const TempDir& dir) { WriteWhole(path(dir, "manifest.json"), ""); },
      [&](const TempDir& dir) { WriteWhole(path(dir, "manifest.json"), ManifestToJson(ExampleManifest(21))); },
      [&](const TempDir& dir) {
        std::filesystem::remove_all(path(dir, ""));
        std::filesystem::create_directory(path(dir, ""));
      },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    TempDir dir;
    ASSERT_OK(Save(files, dir.path(), 10));
    ASSERT_OK(Save(files, dir.path(), 20));
    damages[i](dir);
    ASSERT_OK_AND_ASSIGN(CheckpointList list, ListCheckpoints(files, dir.path(), kExampleJob));
    EXPECT_THAT(Steps(list), ElementsAre(10)) << i;
    ASSERT_EQ(list.rejected.size(), 1u);
    EXPECT_THAT(std::string(list.rejected[0].reason.message()), HasSubstr("step-00000020-e3")) << i;
    EXPECT_EQ(NewestInLineage(list, kLineage)->id.step, 10);
    // Training goes on and reaches step 20 again.
    ASSERT_OK(Save(files, dir.path(), 20));
    ASSERT_OK_AND_ASSIGN(list, ListCheckpoints(files, dir.path(), kExampleJob));
    EXPECT_THAT(Steps(list), ElementsAre(10, 20)) << i;
  }
}

// R1 and R10: whatever operation of a save fails, and in whatever way, the old checkpoint stays, the new one is
// complete or not there, and the next save works.
TEST(CheckpointTest, ASaveThatFailsAtAnyOperation) {
  for (const FaultKind kind :
       {FaultKind::kNoSpace, FaultKind::kIoError, FaultKind::kShortWrite, FaultKind::kCrash, FaultKind::kPowerLoss}) {
    int64_t nth = 1;
    for (; nth < 100; ++nth) {
      TempDir dir;
      PosixFileSystem real;
      ASSERT_OK(Save(real, dir.path(), 10));
      FaultFileSystem faulty(real);
      faulty.FailAt(nth, kind);
      const absl::Status status = Save(faulty, dir.path(), 20);
      ASSERT_OK_AND_ASSIGN(CheckpointList list, ListCheckpoints(real, dir.path(), kExampleJob));
      EXPECT_THAT(list.rejected, IsEmpty()) << nth;
      for (const CheckpointEntry& entry : list.complete)
        EXPECT_OK(VerifyChecksums(real, entry.directory, entry.manifest));
      if (status.ok()) {
        EXPECT_THAT(Steps(list), ElementsAre(10, 20));
        break;
      }
      EXPECT_THAT(std::string(status.message()), HasSubstr(dir.path()));
      ASSERT_FALSE(list.complete.empty());
      EXPECT_EQ(list.complete[0].id.step, 10);
      ASSERT_OK(RemoveAbandoned(real, dir.path(), /*epoch=*/3));
      ASSERT_OK_AND_ASSIGN(const auto names, real.List(dir.path()));
      EXPECT_EQ(names.size(), list.complete.size());
      if (list.complete.size() == 1) {
        ASSERT_OK(Save(real, dir.path(), 20));
      }
    }
    EXPECT_GT(nth, 15);
    EXPECT_LT(nth, 100);
  }
}

// R10: 50 bytes of disk for 128 bytes of checkpoint.
TEST(CheckpointTest, AFullDiskIsSaidAndLeavesNothing) {
  TempDir dir;
  PosixFileSystem real;
  ASSERT_OK(Save(real, dir.path(), 10));
  FaultFileSystem full(real);
  full.SetFreeBytes(100);
  EXPECT_THAT(
      CheckSpace(full, dir.path(), 128),
      StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr("100"), HasSubstr("128"), HasSubstr(dir.path()))));
  EXPECT_OK(CheckSpace(full, dir.path(), 100));
  EXPECT_THAT(Save(full, dir.path(), 20),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("No space left on device")));
  ASSERT_OK_AND_ASSIGN(const auto names, real.List(dir.path()));
  EXPECT_THAT(names, ElementsAre("step-00000010-e3"));
}

TEST(CheckpointTest, CommitChecksWhatItCommits) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(const std::string directory, BeginCheckpoint(files, dir.path(), {120, 3}));
  WriteWhole(JoinPath(directory, "a.safetensors"), ExampleContents('a'));
  EXPECT_THAT(CommitCheckpoint(files, dir.path(), ExampleManifest()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("b.safetensors")));
  WriteWhole(JoinPath(directory, "b.safetensors"), "short");
  EXPECT_THAT(CommitCheckpoint(files, dir.path(), ExampleManifest()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("5 bytes")));
  WriteWhole(JoinPath(directory, "b.safetensors"), ExampleContents('b'));
  Manifest hole = ExampleManifest();
  hole.tensors[1].shards.pop_back();
  EXPECT_THAT(CommitCheckpoint(files, dir.path(), hole),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in no shard")));
  EXPECT_OK(CommitCheckpoint(files, dir.path(), ExampleManifest()));
  EXPECT_TRUE(IsValidCheckpoint(files, dir.Path("step-00000120-e3")));
}

TEST(RetentionTest, KeepsTheNewestThePinnedAndThoseBeingRead) {
  CheckpointList list;
  for (const CheckpointId id : {CheckpointId{80, 2}, CheckpointId{90, 2}, CheckpointId{100, 2}, CheckpointId{110, 2},
                                CheckpointId{110, 3}, CheckpointId{120, 3}}) {
    list.complete.push_back({id, "", ExampleManifest(id.step, id.epoch)});
  }
  EXPECT_THAT(ChooseForRemoval(list, kLineage, {.keep_last = 0, .pinned = {}, .being_read = {}}), IsEmpty());
  // (110, 2) lies outside the lineage: epoch 3 left epoch 2 at step 100.
  EXPECT_THAT(ChooseForRemoval(list, kLineage, {.keep_last = 3, .pinned = {}, .being_read = {}}),
              ElementsAre(CheckpointId{80, 2}, CheckpointId{90, 2}, CheckpointId{110, 2}));
  EXPECT_THAT(ChooseForRemoval(list, kLineage, {.keep_last = 1, .pinned = {{80, 2}}, .being_read = {{110, 3}}}),
              ElementsAre(CheckpointId{90, 2}, CheckpointId{100, 2}, CheckpointId{110, 2}));
  // Epoch 2 goes on although it has lost its job to epoch 3, whose checkpoints are not its to remove.
  const std::vector<LineageEntry> lost = {{.epoch = 2, .forked_from = {}}};
  EXPECT_THAT(ChooseForRemoval(list, lost, {.keep_last = 3, .pinned = {}, .being_read = {}}),
              ElementsAre(CheckpointId{80, 2}));
  // Nothing of this lineage is there: whatever there is stays.
  EXPECT_THAT(
      ChooseForRemoval(list, {{.epoch = 9, .forked_from = {}}}, {.keep_last = 1, .pinned = {}, .being_read = {}}),
      IsEmpty());
}

TEST(CheckpointTest, AnotherJobsCheckpointsAreNotOursAndTheRootIsRefused) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(Save(files, dir.path(), 10));
  ASSERT_OK(Save(files, dir.path(), 20));
  ASSERT_OK_AND_ASSIGN(const CheckpointList own, ListCheckpoints(files, dir.path(), kExampleJob));
  EXPECT_OK(CheckOwner(own, dir.path()));
  ASSERT_OK_AND_ASSIGN(const CheckpointList other, ListCheckpoints(files, dir.path(), "job-other"));
  EXPECT_THAT(other.complete, IsEmpty());
  EXPECT_EQ(NewestInLineage(other, kLineage), nullptr);
  EXPECT_THAT(ChooseForRemoval(other, kLineage, {.keep_last = 1, .pinned = {}, .being_read = {}}), IsEmpty());
  EXPECT_THAT(CheckOwner(other, dir.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr(dir.path()), HasSubstr("job-example"),
                                                                    HasSubstr("a checkpoint.path of its own"))));
  ASSERT_OK(Save(files, dir.path(), 30, 3, "job-other"));
  ASSERT_OK_AND_ASSIGN(const CheckpointList both, ListCheckpoints(files, dir.path(), kExampleJob));
  EXPECT_OK(CheckOwner(both, dir.path()));
  EXPECT_THAT(Steps(both), ElementsAre(10, 20));
  EXPECT_EQ(NewestInLineage(both, kLineage)->id.step, 20);
  EXPECT_THAT(ChooseForRemoval(both, kLineage, {.keep_last = 1, .pinned = {}, .being_read = {}}),
              ElementsAre(CheckpointId{10, 3}));
  EXPECT_THAT(Save(files, dir.path(), 30), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("of job job-other")));
}

TEST(CheckpointTest, AbandonedDirectoriesGoAndOthersStay) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(BeginCheckpoint(files, dir.path(), {1, 1}));
  for (const char* name : {".removing-step-00000002-e1", ".saving-mine", "notes", "step-x"}) {
    ASSERT_OK(files.MakeDirectories(dir.Path(name)));
  }
  ASSERT_OK(BeginCheckpoint(files, dir.path(), {1, 2}));  // a later attempt is saving
  ASSERT_OK(RemoveAbandoned(files, dir.path(), /*epoch=*/1));
  ASSERT_OK_AND_ASSIGN(const auto names, files.List(dir.path()));
  EXPECT_THAT(names, UnorderedElementsAre(".saving-mine", ".saving-step-00000001-e2", "notes", "step-x"));
  EXPECT_OK(RemoveAbandoned(files, dir.Path("none"), /*epoch=*/1));
}

}  // namespace
}  // namespace slipway::engine::format
