#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "common/flag_range.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/model/generation.h"
#include "engine/tokenizer/incremental_decoder.h"
#include "engine/train/guarded_call.h"
#include "worker/host/command_line.h"
#include "worker/host/loaded_model.h"
#include "worker/host/model_commands.h"

namespace slipway::worker::host {
namespace {

namespace tokenizer = engine::tokenizer;
using TokenizerPtr = std::shared_ptr<const tokenizer::Tokenizer>;

absl::StatusOr<std::string> RenderChat(const GenerateOptions& options, const tokenizer::Tokenizer& source) {
  tokenizer::ChatInput input;
  input.add_generation_prompt = true;
  if (options.system.has_value()) input.messages.push_back({{"role", "system"}, {"content", *options.system}});
  input.messages.push_back({{"role", "user"}, {"content", *options.chat}});
  SLIPWAY_ASSIGN_OR_RETURN(const tokenizer::ChatTemplate* chat_template, source.ChatTemplateFor(/*has_tools=*/false));
  return chat_template->Render(input);
}

absl::StatusOr<std::vector<int64_t>> PromptIds(const GenerateOptions& options, const LoadedModel& model,
                                               const tokenizer::Tokenizer& source) {
  std::vector<int32_t> ids;
  if (options.chat.has_value()) {
    SLIPWAY_ASSIGN_OR_RETURN(const std::string text, RenderChat(options, source));
    SLIPWAY_ASSIGN_OR_RETURN(ids, source.Encode(text));
  } else {
    SLIPWAY_ASSIGN_OR_RETURN(ids, source.Encode(*options.prompt, tokenizer::AddSpecialTokens::kAsConfigured));
  }
  if (ids.empty() && source.bos().has_value()) ids.push_back(source.bos()->id);
  if (ids.empty())
    return absl::InvalidArgumentError("the prompt is empty, and the tokenizer has no token to begin with");
  return ModelIds(ids, model.instance.arch());
}

std::vector<int64_t> StopIds(const engine::arch::ModelArch& arch, const tokenizer::Tokenizer& source) {
  std::vector<int64_t> ids = arch.eos_token_ids;
  ids.insert(ids.end(), source.stop_ids().begin(), source.stop_ids().end());
  return ids;
}

// The reply as it grows, printed at once where it is wanted as text. A failure ends the reply and is kept.
class Reply {
 public:
  Reply(TokenizerPtr source, bool print, std::ostream& out)
      : decoder_(std::move(source), /*skip_special_tokens=*/true), print_(print), out_(out) {}

  bool Add(int64_t id) {
    const absl::StatusOr<std::string> text = decoder_.Push(static_cast<int32_t>(id));
    // Rows of the embedding beyond the tokenizer's ids are never trained, but can be drawn from a model of random
    // weights.
    status_ = Annotate(text.status(), StrCat("token id ", id));
    if (text.ok()) Take(*text);
    return text.ok() && out_.good();
  }
  absl::StatusOr<std::string> Finish() {
    SLIPWAY_RETURN_IF_ERROR(status_);
    SLIPWAY_ASSIGN_OR_RETURN(const std::string rest, decoder_.Finish());
    Take(rest);
    if (print_) out_ << std::endl;
    return text_;
  }

 private:
  void Take(const std::string& text) {
    text_ += text;
    if (print_) out_ << text << std::flush;
  }

  tokenizer::IncrementalDecoder decoder_;
  const bool print_;
  std::ostream& out_;
  std::string text_;
  absl::Status status_;
};

}  // namespace

void AddGenerateFlags(CLI::App& app, GenerateOptions& options) {
  AddComputeFlags(app, options.compute);
  CLI::Option_group* text = app.add_option_group("text", "What to answer");
  text->add_option("--prompt", options.prompt, "Go on from this text")->type_name("TEXT");
  CLI::Option* chat =
      text->add_option("--chat", options.chat, "Answer this message, through the model's chat template");
  chat->type_name("TEXT");
  text->require_option(1);
  app.add_option("--system", options.system, "System message of --chat")->needs(chat)->type_name("TEXT");
  app.add_option("--max-new-tokens", options.max_new_tokens, "At most so many tokens")
      ->capture_default_str()
      ->check(WholeNumberIn(1))
      ->type_name("N");
  app.add_option("--temperature", options.temperature, "0 takes the likeliest token each time")
      ->capture_default_str()
      ->check(NumberIn({.min = 0}))
      ->type_name("T");
  app.add_option("--top-p", options.top_p, "Draw from the likeliest tokens that make up this share")
      ->capture_default_str()
      ->check(NumberIn({.min = 0, .max = 1, .exclusive_min = true}))
      ->type_name("P");
  app.add_option("--seed", options.seed, "Seed of the draws")
      ->capture_default_str()
      ->check(WholeNumberIn(0))
      ->type_name("SEED");
  AddOutputFlag(app, options.output);
}

absl::Status Generate(const GenerateOptions& options, std::ostream& out) {
  PosixFileSystem files;
  SLIPWAY_ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(files, options.compute));
  SLIPWAY_ASSIGN_OR_RETURN(const TokenizerPtr source, LoadTokenizer(model));
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<int64_t> prompt, PromptIds(options, model, *source));
  const engine::arch::ModelArch& arch = model.instance.arch();
  const int64_t room = arch.max_position_embeddings - static_cast<int64_t>(prompt.size());
  if (room < 1) {
    return absl::InvalidArgumentError(StrCat("the prompt's ", prompt.size(), " tokens fill all of the model's ",
                                             arch.max_position_embeddings, " positions: nothing can follow"));
  }
  const bool as_text = options.output == "text" || options.output == "name";
  Reply reply(source, as_text, out);
  engine::model::GenerationOptions generation;
  generation.max_new_tokens = std::min(options.max_new_tokens, room);
  generation.temperature = options.temperature;
  generation.top_p = options.top_p;
  generation.seed = options.seed;
  generation.stop_ids = StopIds(arch, *source);
  generation.on_token = [&](int64_t id) {
    const bool ends =
        std::find(generation.stop_ids.begin(), generation.stop_ids.end(), id) != generation.stop_ids.end();
    return ends || reply.Add(id);
  };
  std::vector<int64_t> ids;
  SLIPWAY_RETURN_IF_ERROR(engine::train::Guarded("generating", [&] {
    ids = engine::model::Generate(model.instance.pieces(), prompt, generation, model.device);
    return absl::OkStatus();
  }));
  SLIPWAY_ASSIGN_OR_RETURN(const std::string text, reply.Finish());
  if (!as_text) {
    const bool stopped =
        std::find(generation.stop_ids.begin(), generation.stop_ids.end(), ids.back()) != generation.stop_ids.end();
    PrintAnswer(options.output,
                {{"text", text},
                 {"prompt_tokens", prompt.size()},
                 {"new_tokens", ids.size()},
                 {"ended_by", stopped ? "stop" : "length"}},
                "", "", out);
  }
  return out ? absl::OkStatus() : absl::DataLossError("the reply could not be written to the end");
}

int GenerateCommand(const GenerateOptions& options) { return Report(Generate(options, std::cout)); }

}  // namespace slipway::worker::host
