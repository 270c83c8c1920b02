// A rank's last collective, in a file that is mapped MAP_SHARED: it outlives the process, so the agent can say in which
// operation a killed or hanging rank was. Written without locks; a reader never sees half a record.
//
// One thread of one process writes. Any number of readers, also in other processes.
//
// The file (native byte order, 8-byte words): magic, generation, then two records; the record that counts is
// number generation % 2. The writer fills the other one and then raises the generation.
#ifndef SLIPWAY_WORKER_LINK_COLLECTIVE_BOARD_H_
#define SLIPWAY_WORKER_LINK_COLLECTIVE_BOARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace slipway::worker::link {

struct CollectiveRecord {
  std::string group;      // "dp", "tp", …; at most 31 bytes are kept
  std::string operation;  // "all_reduce", …; at most 31 bytes
  int64_t sequence = 0;   // of the group's operations, counted from 1; 0: none yet
  bool done = false;
  absl::Time start_time = absl::UnixEpoch();
  absl::Duration start_monotonic;  // CLOCK_MONOTONIC, comparable between processes of one machine
  std::string phase;               // at most 31 bytes
  int64_t step = 0;

  friend bool operator==(const CollectiveRecord&, const CollectiveRecord&) = default;
};

// For people: "dp all_reduce #1234, 2.1 s" or "…, done"; empty when there was none. `end` is a CLOCK_MONOTONIC time.
std::string CollectiveText(const CollectiveRecord& record, absl::Duration end);

class CollectiveBoard {
 public:
  // Makes or empties `path`. Its blocks are reserved, so that a full disk is an error here and not a SIGBUS later.
  static absl::StatusOr<std::unique_ptr<CollectiveBoard>> Create(const std::string& path);
  ~CollectiveBoard();
  CollectiveBoard(const CollectiveBoard&) = delete;
  CollectiveBoard& operator=(const CollectiveBoard&) = delete;

  void SetPhase(std::string_view phase);
  void SetStep(int64_t step);
  // An operation starts; `sequence` counts the operations of its group.
  void Begin(std::string_view group, std::string_view operation, int64_t sequence);
  // The operation of the last Begin has ended.
  void End();

  // What the board at `path` says now; its writer may be dead. DataLoss when the file is not a board.
  static absl::StatusOr<CollectiveRecord> Read(const std::string& path);

 private:
  struct Layout;
  struct Record;
  explicit CollectiveBoard(Layout* layout);
  void Publish();

  Layout* layout_;
  std::unique_ptr<Record> current_;
};

}  // namespace slipway::worker::link

#endif  // SLIPWAY_WORKER_LINK_COLLECTIVE_BOARD_H_
