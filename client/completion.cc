// completion bash|zsh|fish: scripts made from the tree of commands, so that they never lag behind it. All three ask
// for the same things: the words of the command so far decide which subcommands and flags may follow, and `--set` is
// followed by the field names of a job.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/command.h"
#include "client/exit_code.h"
#include "engine/spec/spec_fields.h"

namespace slipway::client {
namespace {

struct Node {
  std::string path;                                            // "jobs submit"; empty for the program itself
  std::vector<std::string> words;                              // subcommands, or values of a closed set
  std::vector<std::string> flags;                              // its own and the global ones
  std::vector<std::pair<std::string, std::string>> described;  // subcommand and its description
};

void CollectFlags(const CLI::App& app, std::set<std::string>* flags) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags->insert(absl::StrCat("--", name));
    for (const std::string& name : option->get_snames()) flags->insert(absl::StrCat("-", name));
  }
}

void Collect(const CLI::App& app, const std::string& path, std::set<std::string> flags, std::vector<Node>* nodes) {
  CollectFlags(app, &flags);
  Node node{.path = path, .flags = {flags.begin(), flags.end()}};
  for (const CLI::App* sub : app.get_subcommands({})) {
    node.words.push_back(sub->get_name());
    node.described.emplace_back(sub->get_name(), sub->get_description());
  }
  if (path == "completion") node.words = {"bash", "zsh", "fish"};
  nodes->push_back(std::move(node));
  for (const CLI::App* sub : app.get_subcommands({})) {
    Collect(*sub, path.empty() ? sub->get_name() : absl::StrCat(path, " ", sub->get_name()), flags, nodes);
  }
}

std::vector<Node> Tree(const CLI::App& app) {
  std::vector<Node> nodes;
  Collect(app, "", {}, &nodes);
  return nodes;
}

std::string FieldWords(const char* suffix) {
  return absl::StrJoin(engine::spec::AllFields(), " ", [&](std::string* out, const engine::spec::FieldPath& field) {
    absl::StrAppend(out, field.path, field.field()->is_map() ? "." : suffix);
  });
}

// The cases that map a command to its words; the syntax is the same in bash and zsh.
std::string Cases(const std::vector<Node>& nodes) {
  std::string text;
  for (const Node& node : nodes) {
    absl::StrAppend(&text, "    '", node.path, "') subcommands='", absl::StrJoin(node.words, " "), "'; flags='",
                    absl::StrJoin(node.flags, " "), "' ;;\n");
  }
  return text;
}

// Walks the words before the cursor and keeps those that are commands: flags and their values do not count.
constexpr char kBash[] = R"(# bash completion for slipway: source <(slipway completion bash)
_slipway_tree() {
  case "$1" in
@CASES@    *) return 1 ;;
  esac
}
_slipway() {
  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" command='' subcommands='' flags='' longer='' i
  for ((i = 1; i < COMP_CWORD; i++)); do
    longer="${command:+$command }${COMP_WORDS[i]}"
    if [[ "${COMP_WORDS[i]}" != -* ]] && _slipway_tree "$longer"; then command="$longer"; fi
  done
  _slipway_tree "$command"
  COMPREPLY=()
  compopt +o nospace 2>/dev/null
  case "$previous" in
    --set) COMPREPLY=($(compgen -W '@FIELDS_EQUALS@' -- "$current")); compopt -o nospace 2>/dev/null; return ;;
    -o|--output) COMPREPLY=($(compgen -W 'table json yaml name' -- "$current")); return ;;
    -f|--file|--input|--out|--output-prefix|--checkpoint|--model|--tokenizer) compopt -o default 2>/dev/null; return ;;
  esac
  if [[ "$command" == 'spec explain' && "$current" != -* ]]; then
    COMPREPLY=($(compgen -W '@FIELDS@' -- "$current"))
  elif [[ "$current" == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
  elif [[ -n "$subcommands" ]]; then
    COMPREPLY=($(compgen -W "$subcommands" -- "$current"))
  else
    compopt -o default 2>/dev/null
  fi
}
complete -F _slipway slipway
)";

constexpr char kZsh[] = R"(#compdef slipway
# zsh completion for slipway: source <(slipway completion zsh)
_slipway_tree() {
  case "$1" in
@CASES@    *) return 1 ;;
  esac
}
_slipway() {
  local subcommands='' flags='' command='' longer='' i
  for ((i = 2; i < CURRENT; i++)); do
    longer="${command:+$command }${words[i]}"
    if [[ "${words[i]}" != -* ]] && _slipway_tree "$longer"; then command="$longer"; fi
  done
  _slipway_tree "$command"
  case "${words[CURRENT-1]}" in
    --set) compadd -S '' -- @FIELDS_EQUALS@; return ;;
    -o|--output) compadd -- table json yaml name; return ;;
    -f|--file|--input|--out|--output-prefix|--checkpoint|--model|--tokenizer) _files; return ;;
  esac
  if [[ "$command" == 'spec explain' && "${words[CURRENT]}" != -* ]]; then
    compadd -- @FIELDS@
  elif [[ "${words[CURRENT]}" == -* ]]; then
    compadd -- ${=flags}
  elif [[ -n "$subcommands" ]]; then
    compadd -- ${=subcommands}
  else
    _files
  fi
}
compdef _slipway slipway
)";

std::string Fish(const std::vector<Node>& nodes) {
  std::string text =
      "# fish completion for slipway: slipway completion fish | source\n"
      "function __slipway_path\n"
      "  set -l path\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    string match -q -- '-*' $word; and continue\n"
      "    set -l longer (string join ' ' $path $word)\n"
      "    contains -- $longer $__slipway_commands; and set path $path $word\n"
      "  end\n"
      "  string join ' ' $path\n"
      "end\n"
      "function __slipway_at\n"
      "  test (__slipway_path) = \"$argv[1]\"\n"
      "end\n"
      "complete -c slipway -e\n";
  std::vector<std::string> paths;
  for (const Node& node : nodes) {
    if (!node.path.empty()) paths.push_back(absl::StrCat("'", node.path, "'"));
  }
  absl::StrAppend(&text, "set -g __slipway_commands ", absl::StrJoin(paths, " "), "\n");
  for (const Node& node : nodes) {
    const std::string condition = absl::StrCat("complete -c slipway -n '__slipway_at \"", node.path, "\"'");
    for (const auto& [name, description] : node.described) {
      absl::StrAppend(&text, condition, " -f -a ", name, " -d '", absl::StrReplaceAll(description, {{"'", "\\'"}}),
                      "'\n");
    }
    for (const std::string& flag : node.flags) {
      if (flag == "--set") {
        absl::StrAppend(&text, condition, " -x -l set -a '", FieldWords("="), "'\n");
      } else if (flag == "--output") {
        absl::StrAppend(&text, condition, " -x -s o -l output -a 'table json yaml name'\n");
      } else if (flag.rfind("--", 0) == 0) {
        absl::StrAppend(&text, condition, " -l ", flag.substr(2), "\n");
      } else if (flag != "-o") {
        absl::StrAppend(&text, condition, " -s ", flag.substr(1), "\n");
      }
    }
    if (node.path == "completion") absl::StrAppend(&text, condition, " -f -a '", absl::StrJoin(node.words, " "), "'\n");
    if (node.path == "spec explain") absl::StrAppend(&text, condition, " -f -a '", FieldWords(""), "'\n");
  }
  return text;
}

std::string Filled(const char* script, const std::vector<Node>& nodes) {
  return absl::StrReplaceAll(
      script, {{"@CASES@", Cases(nodes)}, {"@FIELDS_EQUALS@", FieldWords("=")}, {"@FIELDS@", FieldWords("")}});
}

}  // namespace

void AddCompletionCommand(CLI::App* app, Command* command) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* completion = app->add_subcommand("completion", "A completion script: source <(slipway completion bash)");
  completion->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->Run(
      completion,
      [=]() -> absl::StatusOr<int> {
        const std::vector<Node> nodes = Tree(*app);
        command->Print(*shell == "fish" ? Fish(nodes) : Filled(*shell == "bash" ? kBash : kZsh, nodes));
        return kExitOk;
      },
      Outputs::kTextOnly);
}

}  // namespace slipway::client
