#include "client/model_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/format.h"
#include "common/file_system.h"
#include "common/status_macros.h"
#include "engine/arch/hf_config.h"
#include "engine/arch/model_estimate.h"

namespace slipway::client {

absl::StatusOr<std::string> ModelReport(const std::string& directory) {
  SLIPWAY_ASSIGN_OR_RETURN(const engine::arch::ModelArch arch,
                           engine::arch::ReadHfConfig(JoinPath(directory, "config.json")));
  std::string text;
  const auto line = [&](const std::string& name, const std::string& value) {
    absl::StrAppend(&text, name, std::string(name.size() < 18 ? 18 - name.size() : 1, ' '), value, "\n");
  };
  line("architecture", std::string(engine::arch::FamilyName(arch.family)));
  line("layers", absl::StrCat(arch.num_layers));
  line("hidden size", absl::StrCat(arch.hidden_size));
  line("attention", absl::StrCat(arch.num_attention_heads, " query heads, ", arch.num_query_groups,
                                 " key/value heads of ", arch.kv_channels));
  line("feed-forward", absl::StrCat(arch.ffn_hidden_size));
  line("vocabulary",
       absl::StrCat(arch.vocab_size, arch.untie_embeddings_and_output_weights ? ", untied output" : ", tied output"));
  line("positions", absl::StrCat(arch.max_position_embeddings, ", rotary base ", Number(arch.rotary_base, 10)));
  line("parameters", Grouped(engine::arch::ParameterCount(arch)));
  line("dtype", std::string(DTypeName(arch.dtype)));
  return text;
}

}  // namespace slipway::client
