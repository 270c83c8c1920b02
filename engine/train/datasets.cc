#include "engine/train/datasets.h"

#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/corpus/chat_dataset.h"
#include "engine/corpus/mock_dataset.h"
#include "engine/corpus/pretrain_dataset.h"
#include "engine/corpus/sample_order.h"
#include "engine/corpus/split.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/guarded_call.h"

namespace slipway::engine::train {
namespace {

constexpr size_t kMaxNotes = 20;

uint64_t Seed(const v1::TrainingSpec& spec) { return static_cast<uint64_t>(spec.training().seed()); }

std::shared_ptr<const corpus::SampleSource> InOrder(std::shared_ptr<const corpus::SampleSet> set,
                                                    const v1::TrainingSpec& spec) {
  return corpus::InEpochOrder(std::move(set), Seed(spec), spec.dataset().shuffle());
}

// A validation set is read in its own order, once.
std::shared_ptr<const corpus::SampleSource> InFileOrder(std::shared_ptr<const corpus::SampleSet> set) {
  return corpus::InEpochOrder(std::move(set), 0, /*shuffle=*/false);
}

absl::Status CheckVocabulary(const corpus::SampleSource& source, const arch::ModelArch& arch, const std::string& path) {
  if (source.vocab_bound() <= arch.vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(path, ": holds token id ", source.vocab_bound() - 1,
                                           ", the model's embedding has ", arch.vocab_size, " rows"));
}

void AddSpecialToken(const char* role, const std::optional<tokenizer::SpecialToken>& token, v1::DatasetReport* report) {
  report->add_special_tokens(token.has_value() ? StrCat(role, " ", token->id, " ", token->text)
                                               : StrCat(role, " none"));
}

v1::DatasetReport ReportOf(const corpus::ChatReport& chat, const tokenizer::Tokenizer& tokenizer) {
  v1::DatasetReport report;
  report.set_samples(chat.samples);
  report.set_tokens(chat.tokens);
  report.set_loss_tokens(chat.loss_tokens);
  report.set_truncated(chat.truncated);
  report.set_dropped(chat.dropped);
  for (std::string& note : chat.Notes()) {
    if (static_cast<size_t>(report.notes_size()) < kMaxNotes) report.add_notes(std::move(note));
  }
  AddSpecialToken("BOS", tokenizer.bos(), &report);
  AddSpecialToken("EOS", tokenizer.eos(), &report);
  AddSpecialToken("PAD", tokenizer.pad(), &report);
  return report;
}

absl::StatusOr<Datasets> OpenChat(const v1::TrainingSpec& spec, FileSystem& files) {
  const v1::DatasetSpec& dataset = spec.dataset();
  SLIPWAY_ASSIGN_OR_RETURN(const std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                           tokenizer::Tokenizer::Load(spec.tokenizer().path(), spec.tokenizer().chat_template_path()));
  corpus::ChatDatasetOptions options;
  options.path = dataset.path();
  options.seq_length = spec.training().seq_length();
  options.overlong = dataset.overlong() == "drop" ? corpus::Overlong::kDrop : corpus::Overlong::kTruncate;
  SLIPWAY_ASSIGN_OR_RETURN(const auto chats, corpus::ChatDataset::Load(files, tokenizer, options));
  Datasets opened;
  opened.training = InOrder(chats, spec);
  opened.report = ReportOf(chats->report(), *tokenizer);
  if (dataset.has_validation_path()) {
    options.path = dataset.validation_path();
    SLIPWAY_ASSIGN_OR_RETURN(const auto held_out, corpus::ChatDataset::Load(files, tokenizer, options));
    opened.validation = InFileOrder(held_out);
  }
  return opened;
}

absl::StatusOr<Datasets> OpenIndexed(const v1::TrainingSpec& spec, const arch::ModelArch& arch,
                                     const std::string& cache_dir, FileSystem& files) {
  const v1::DatasetSpec& dataset = spec.dataset();
  corpus::PretrainOptions options;
  options.prefix = dataset.path();
  options.seq_length = spec.training().seq_length();
  options.vocab_size = arch.vocab_size;
  if (dataset.eod_mask_loss()) {
    SLIPWAY_ASSIGN_OR_RETURN(const auto tokenizer, tokenizer::Tokenizer::Load(spec.tokenizer().path()));
    if (!tokenizer->eos().has_value()) {
      return absl::InvalidArgumentError(
          StrCat(spec.tokenizer().path(), ": the tokenizer has no end token, dataset.eod_mask_loss needs one"));
    }
    options.eod_without_loss = tokenizer->eos()->id;
  }
  SLIPWAY_ASSIGN_OR_RETURN(options.split, corpus::ParseSplit(dataset.split()));
  if (dataset.has_validation_path()) options.split = {1, 0, 0};
  Datasets opened;
  if (dataset.sample_order() == "megatron") {
    corpus::MegatronOptions order;
    order.requested_samples = dataset.requested_samples();
    order.seed = Seed(spec);
    order.cache_directory = dataset.has_cache_path() ? dataset.cache_path() : cache_dir;
    SLIPWAY_ASSIGN_OR_RETURN(opened.training, corpus::OpenPretrainInMegatronOrder(files, options, order));
  } else {
    SLIPWAY_ASSIGN_OR_RETURN(const auto samples, corpus::OpenPretrainSamples(files, options));
    opened.training = InOrder(samples, spec);
  }
  opened.report.set_samples(opened.training->epoch_size());
  opened.report.set_tokens(opened.training->epoch_size() * options.seq_length);
  if (spec.validation().eval_interval() == 0) return opened;
  if (dataset.has_validation_path()) {
    options.prefix = dataset.validation_path();
  } else {
    options.part = corpus::SplitPart::kValidation;
  }
  SLIPWAY_ASSIGN_OR_RETURN(const auto held_out, corpus::OpenPretrainSamples(files, options));
  opened.validation = InFileOrder(held_out);
  return opened;
}

absl::StatusOr<Datasets> OpenMock(const v1::TrainingSpec& spec, const arch::ModelArch& arch) {
  corpus::MockDatasetOptions options;
  options.num_samples = spec.dataset().mock_num_samples();
  options.seq_length = spec.training().seq_length();
  options.vocab_size = arch.vocab_size;
  options.seed = Seed(spec);
  SLIPWAY_ASSIGN_OR_RETURN(const auto samples, corpus::MakeMockDataset(options));
  Datasets opened;
  opened.training = InOrder(samples, spec);
  // Other samples of the same language.
  options.seed = Seed(spec) + 1;
  SLIPWAY_ASSIGN_OR_RETURN(const auto held_out, corpus::MakeMockDataset(options));
  opened.validation = InFileOrder(held_out);
  opened.report.set_samples(options.num_samples);
  opened.report.set_tokens(options.num_samples * options.seq_length);
  opened.report.set_loss_tokens(opened.report.tokens());
  return opened;
}

}  // namespace

absl::StatusOr<Datasets> OpenDatasets(const v1::TrainingSpec& resolved, const arch::ModelArch& arch,
                                      const std::string& cache_dir, FileSystem& files) {
  const std::string& kind = resolved.dataset().kind();
  absl::StatusOr<Datasets> opened = kind == "chat"      ? OpenChat(resolved, files)
                                    : kind == "indexed" ? OpenIndexed(resolved, arch, cache_dir, files)
                                                        : OpenMock(resolved, arch);
  if (!opened.ok()) return DataFault(opened.status());
  for (const auto& [source, path] : {std::pair{opened->training, resolved.dataset().path()},
                                     std::pair{opened->validation, resolved.dataset().validation_path()}}) {
    if (source == nullptr) continue;
    if (const absl::Status checked = CheckVocabulary(*source, arch, path); !checked.ok()) return DataFault(checked);
  }
  return opened;
}

absl::Status DataFault(const absl::Status& status) {
  return WithCause(status, absl::IsUnavailable(status) ? "STORAGE" : "DATA");
}

}  // namespace slipway::engine::train
