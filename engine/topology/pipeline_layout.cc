#include "engine/topology/pipeline_layout.h"

#include <charconv>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace slipway::engine::topology {
namespace {

// Bounds what repetitions can make of a short string.
constexpr int64_t kMaxPieces = 1 << 20;

// A character of the layout with the place where it was written, from 1.
struct Piece {
  char kind;
  int64_t position;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<int>> Parse() {
    while (at_ < text_.size()) {
      if (Skip()) continue;
      SLIPWAY_RETURN_IF_ERROR(text_[at_] == '(' ? Group() : Single());
    }
    return Stages();
  }

 private:
  absl::Status Fault(int64_t position, const std::string& message) const {
    return absl::InvalidArgumentError(absl::StrCat("position ", position, ": ", message));
  }
  int64_t Position() const { return static_cast<int64_t>(at_) + 1; }
  bool Skip() {
    const bool comma = text_[at_] == ',';
    at_ += comma ? 1 : 0;
    return comma;
  }
  void SkipCommas() {
    while (at_ < text_.size() && Skip()) {
    }
  }

  absl::StatusOr<Piece> Take() {
    const char c = text_[at_];
    const Piece piece{c, Position()};
    switch (c) {
      case 'E':
      case 't':
      case 'L':
      case '|':
        ++at_;
        return piece;
      case 'm':
        return Fault(Position(), "m (multi-token prediction) is not supported; leave it out");
      case '(':
        return Fault(Position(), "parentheses do not stand inside parentheses");
      case ')':
        return Fault(Position(), "')' without '('");
      case '*':
        return Fault(Position(), "'*' stands after a character or a closing parenthesis");
      default:
        return Fault(Position(), absl::StrCat(absl::ascii_isprint(static_cast<unsigned char>(c))
                                                  ? absl::StrCat("'", std::string(1, c), "'")
                                                  : std::string("the character"),
                                              " is not known; E is the embedding, t a layer, L the loss, | the next "
                                              "stage, x*n and (..)*n repeat"));
    }
  }

  // What follows a character or a group: "*n", or nothing.
  absl::StatusOr<int64_t> Count() {
    SkipCommas();
    if (at_ == text_.size() || text_[at_] != '*') return 1;
    ++at_;
    SkipCommas();
    int64_t count = 0;
    const char* first = text_.data() + at_;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), count);
    if (error != std::errc() || count < 1 || count > kMaxPieces) {
      return Fault(Position(), absl::StrCat("a count from 1 to ", kMaxPieces, " must follow '*'"));
    }
    at_ += static_cast<size_t>(end - first);
    return count;
  }

  absl::Status Single() {
    SLIPWAY_ASSIGN_OR_RETURN(const Piece piece, Take());
    SLIPWAY_ASSIGN_OR_RETURN(const int64_t count, Count());
    return Append({piece}, count, pieces_);
  }

  absl::Status Group() {
    const int64_t open = Position();
    ++at_;
    std::vector<Piece> group;
    while (true) {
      SkipCommas();
      if (at_ == text_.size()) return Fault(open, "'(' is never closed");
      if (text_[at_] == ')') break;
      SLIPWAY_ASSIGN_OR_RETURN(const Piece piece, Take());
      SLIPWAY_ASSIGN_OR_RETURN(const int64_t count, Count());
      SLIPWAY_RETURN_IF_ERROR(Append({piece}, count, group));
    }
    if (group.empty()) return Fault(open, "the parentheses are empty");
    ++at_;
    SkipCommas();
    if (at_ == text_.size() || text_[at_] != '*') {
      return Fault(Position() - 1, "'*' and a count must follow the closing parenthesis");
    }
    SLIPWAY_ASSIGN_OR_RETURN(const int64_t count, Count());
    return Append(group, count, pieces_);
  }

  absl::Status Append(const std::vector<Piece>& what, int64_t count, std::vector<Piece>& to) const {
    if (static_cast<int64_t>(to.size()) + static_cast<int64_t>(what.size()) * count > kMaxPieces) {
      return Fault(what.front().position, absl::StrCat("the layout has more than ", kMaxPieces, " pieces"));
    }
    for (int64_t i = 0; i < count; ++i) to.insert(to.end(), what.begin(), what.end());
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<int>> Stages() const {
    if (pieces_.empty()) return Fault(1, "the layout is empty; a whole model on one stage is Et*N|L or Et*NL");
    if (pieces_.front().kind != 'E') return Fault(pieces_.front().position, "the layout must begin with E");
    if (pieces_.back().kind != 'L') return Fault(pieces_.back().position, "the layout must end with L");
    std::vector<int> layers = {0};
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      if (piece.kind == '|') layers.push_back(0);
      if (piece.kind == 't') ++layers.back();
      if (piece.kind == 'E' && i > 0) return Fault(piece.position, "a second E; the embedding stands once, at the start");
      if (piece.kind == 'L' && i + 1 < pieces_.size()) {
        return Fault(piece.position, "L before the end; the loss stands once, at the end");
      }
    }
    return layers;
  }

  const std::string_view text_;
  size_t at_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace

absl::StatusOr<std::vector<int>> ParsePipelineLayout(std::string_view layout) { return Parser(layout).Parse(); }

}  // namespace slipway::engine::topology
