// The parts of a preflight that open things. Each appends what it finds to the result; none stops at its first fault.
// Internal to this folder. Thread-safe: no state.
#ifndef SLIPWAY_WORKER_HOST_PREFLIGHT_CHECKS_H_
#define SLIPWAY_WORKER_HOST_PREFLIGHT_CHECKS_H_

#include <string>

#include "absl/status/status.h"
#include "common/file_system.h"
#include "engine/arch/model_arch.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/worker/v1/worker.pb.h"

namespace slipway::worker::host {

void AddFault(const std::string& path, std::string message, slipway::v1::PreflightResult* result);
// Nothing for OK.
void AddFault(const std::string& path, const absl::Status& status, slipway::v1::PreflightResult* result);

// Every path of the job, links followed, must lie below one of the launch's roots.
void CheckRoots(const slipway::worker::v1::WorkerLaunch& launch, slipway::v1::PreflightResult* result);
// The weights that the run starts from: none where it resumes or draws them.
void CheckWeights(FileSystem& files, const slipway::worker::v1::WorkerLaunch& launch,
                  const engine::arch::ModelArch& arch, slipway::v1::PreflightResult* result);
// The tokenizer loads, and each of its ids has a row in the embedding.
void CheckTokenizer(const slipway::v1::TrainingSpec& spec, const engine::arch::ModelArch& arch,
                    slipway::v1::PreflightResult* result);
// The directory can be made and written.
void CheckWritable(FileSystem& files, const std::string& path, const std::string& directory,
                   slipway::v1::PreflightResult* result);
// One checkpoint must fit; a note where those to be kept do not. REQUIRES: a spec without faults.
void CheckSpace(FileSystem& files, const slipway::worker::v1::WorkerLaunch& launch, const engine::arch::ModelArch& arch,
                slipway::v1::PreflightResult* result);
// Every token id of indexed data has a row in the embedding. Reads all of the files, of any size, and logs how far it is:
// their size over the disk's rate has to stay within the preflight's deadline. Files that do not open are not its matter.
void CheckTokenIds(FileSystem& files, const slipway::v1::TrainingSpec& spec, const engine::arch::ModelArch& arch,
                   slipway::v1::PreflightResult* result);

}  // namespace slipway::worker::host

#endif  // SLIPWAY_WORKER_HOST_PREFLIGHT_CHECKS_H_
