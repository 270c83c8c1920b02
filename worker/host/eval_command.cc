#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/flag_range.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/corpus/chat_dataset.h"
#include "engine/train/data_feed.h"
#include "engine/train/guarded_call.h"
#include "worker/host/command_line.h"
#include "worker/host/loaded_model.h"
#include "worker/host/model_commands.h"

namespace slipway::worker::host {
namespace {

namespace train = engine::train;
using engine::corpus::Sample;

struct LossSum {
  double loss = 0;
  double weight = 0;
};

absl::Status AddLoss(const LoadedModel& model, const Sample& sample, LossSum& sum) {
  return train::Guarded("computing the loss", [&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    const train::LocalBatch local = train::MakeMicroBatch(
        {sample}, {0}, {.seq_length = static_cast<int64_t>(sample.tokens.size()), .device = model.device});
    const engine::model::MicroBatch& batch = local.batch;
    engine::nn::ForwardContext context;
    context.layout = &batch.layout;
    context.training = false;
    sum.loss += engine::model::ForwardPieces(model.instance.pieces(), {}, batch, context).item<double>();
    for (const float weight : sample.weights) sum.weight += weight;
    return absl::OkStatus();
  });
}

// Every token predicts the next one.
absl::StatusOr<Sample> TextSample(const LoadedModel& model, const std::string& text) {
  SLIPWAY_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(model));
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                           tokenizer->Encode(text, engine::tokenizer::AddSpecialTokens::kAsConfigured));
  SLIPWAY_RETURN_IF_ERROR(ModelIds(ids, model.instance.arch()).status());
  if (ids.size() < 2) return absl::InvalidArgumentError("--text: a loss needs at least two tokens");
  Sample sample;
  sample.tokens.assign(ids.begin(), ids.end() - 1);
  sample.labels.assign(ids.begin() + 1, ids.end());
  sample.weights.assign(sample.tokens.size(), 1.f);
  return sample;
}

absl::StatusOr<LossSum> ChatLoss(FileSystem& files, const LoadedModel& model, const EvalOptions& options) {
  SLIPWAY_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(model));
  engine::corpus::ChatDatasetOptions chat;
  chat.path = *options.data;
  chat.seq_length = options.seq_length;
  SLIPWAY_ASSIGN_OR_RETURN(const auto chats, engine::corpus::ChatDataset::Load(files, tokenizer, chat));
  LossSum sum;
  for (int64_t i = 0; i < chats->size(); ++i) {
    SLIPWAY_ASSIGN_OR_RETURN(const Sample sample, chats->Get(i));
    SLIPWAY_RETURN_IF_ERROR(AddLoss(model, sample, sum));
  }
  return sum;
}

}  // namespace

void AddEvalFlags(CLI::App& app, EvalOptions& options) {
  AddComputeFlags(app, options.compute);
  auto* what = app.add_option_group("what", "What to predict");
  what->add_option("--data", options.data, "A chat file; loss on assistant tokens")->type_name("FILE");
  what->add_option("--text", options.text, "A text; loss on every token but the first")->type_name("TEXT");
  what->require_option(1);
  app.add_option("--seq-length", options.seq_length, "Longer samples of --data are cut")
      ->check(WholeNumberIn(1))
      ->type_name("TOKENS");
  AddOutputFlag(app, options.output);
}

absl::Status Eval(const EvalOptions& options, std::ostream& out) {
  PosixFileSystem files;
  SLIPWAY_ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(files, options.compute));
  LossSum sum;
  if (options.text.has_value()) {
    SLIPWAY_ASSIGN_OR_RETURN(const Sample sample, TextSample(model, *options.text));
    SLIPWAY_RETURN_IF_ERROR(AddLoss(model, sample, sum));
  } else {
    SLIPWAY_ASSIGN_OR_RETURN(sum, ChatLoss(files, model, options));
  }
  if (sum.weight == 0) return absl::InvalidArgumentError(StrCat(*options.data, ": no token carries a loss"));
  const double loss = sum.loss / sum.weight;
  const auto tokens = static_cast<int64_t>(sum.weight);
  const double perplexity = std::exp(loss);
  std::ostringstream text;
  text << "loss " << loss << ", perplexity " << perplexity << " over " << tokens << " tokens";
  PrintAnswer(options.output, {{"loss", loss}, {"perplexity", perplexity}, {"loss_tokens", tokens}}, text.str(), "",
              out);
  return absl::OkStatus();
}

int EvalCommand(const EvalOptions& options) { return Report(Eval(options, std::cout)); }

}  // namespace slipway::worker::host
