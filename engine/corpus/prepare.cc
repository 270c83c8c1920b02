#include "engine/corpus/prepare.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/corpus/jsonl.h"
#include "engine/corpus/parallel_for.h"
#include "engine/format/indexed_dataset.h"

namespace slipway::engine::corpus {
namespace {

using tokenizer::Tokenizer;

constexpr size_t kBatchLines = 4096;
constexpr size_t kBatchBytes = size_t{32} << 20;

using Document = std::vector<std::vector<int32_t>>;  // sequences
using Documents = std::vector<Document>;             // one for each key

absl::StatusOr<Document> EncodeDocument(const Tokenizer& tokenizer, const Json& value, bool append_eod) {
  Document document;
  const auto encode = [&](const Json& text) -> absl::Status {
    if (!text.is_string()) {
      return absl::InvalidArgumentError(
          StrCat("it is ", tokenizer::ShowJson(text), "; expected a text or a list of texts"));
    }
    SLIPWAY_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.Encode(text.get_ref<const std::string&>()));
    if (!ids.empty()) document.push_back(std::move(ids));
    return absl::OkStatus();
  };
  if (value.is_array()) {
    for (const Json& sentence : value) SLIPWAY_RETURN_IF_ERROR(encode(sentence));
  } else {
    SLIPWAY_RETURN_IF_ERROR(encode(value));
  }
  if (append_eod && !document.empty()) document.back().push_back(tokenizer.eos()->id);
  return document;
}

absl::StatusOr<Documents> EncodeLine(const Tokenizer& tokenizer, const PrepareOptions& options,
                                     const std::string& text) {
  SLIPWAY_ASSIGN_OR_RETURN(const Json json, tokenizer::ParseJson(text));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(StrCat("the line is ", tokenizer::ShowJson(json), "; expected an object"));
  }
  Documents documents;
  for (const std::string& key : options.json_keys) {
    const auto value = json.find(key);
    if (value == json.end()) return absl::InvalidArgumentError(StrCat("there is no \"", key, "\""));
    absl::StatusOr<Document> document = EncodeDocument(tokenizer, *value, options.append_eod);
    SLIPWAY_RETURN_IF_ERROR(Annotate(document.status(), StrCat("\"", key, "\"")));
    documents.push_back(*std::move(document));
  }
  return documents;
}

// One run: the writers of all keys, and what became of the lines.
class Preparation {
 public:
  Preparation(FileSystem& files, const Tokenizer& tokenizer, const PrepareOptions& options)
      : files_(files), tokenizer_(tokenizer), options_(options) {}

  absl::StatusOr<PrepareReport> Run() {
    SLIPWAY_RETURN_IF_ERROR(CheckOptions());
    SLIPWAY_ASSIGN_OR_RETURN(JsonlReader reader, JsonlReader::Open(files_, options_.input));
    absl::Status status = OpenWriters();
    if (status.ok()) status = ReadAll(reader);
    if (status.ok() && report_.lines == report_.skipped) {
      status = absl::InvalidArgumentError(StrCat(options_.input, " has no document", WhyNone()));
    }
    for (format::IndexedDatasetWriter& writer : writers_) {
      if (status.ok()) status = writer.Finish();
    }
    if (!status.ok()) {
      RemoveOutputs();
      return status;
    }
    return std::move(report_);
  }

 private:
  absl::Status CheckOptions() const {
    if (options_.json_keys.empty()) return absl::InvalidArgumentError("no JSON key was given; expected at least one");
    if (std::set<std::string>(options_.json_keys.begin(), options_.json_keys.end()).size() !=
        options_.json_keys.size()) {
      return absl::InvalidArgumentError("a JSON key was given twice");
    }
    if (options_.append_eod && !tokenizer_.eos().has_value()) {
      return absl::FailedPreconditionError(
          StrCat(tokenizer_.directory(), " names no eos_token to put behind each document"));
    }
    return absl::OkStatus();
  }

  std::string WhyNone() const {
    if (report_.lines == 0) return ": there is no line in it";
    const DroppedLine& first = report_.skipped_lines.front();
    return StrCat(": all of its ", report_.lines, " lines were left out; line ", first.line, ": ", first.reason);
  }

  absl::Status OpenWriters() {
    const format::TokenType type = format::TokenTypeForVocabulary(tokenizer_.vocab_size());
    for (const std::string& key : options_.json_keys) {
      PreparedOutput output{.key = key, .prefix = StrCat(options_.output_prefix, "_", key, "_document")};
      SLIPWAY_ASSIGN_OR_RETURN(format::IndexedDatasetWriter writer,
                               format::IndexedDatasetWriter::Create(files_, output.prefix, type));
      writers_.push_back(std::move(writer));
      report_.outputs.push_back(std::move(output));
    }
    return absl::OkStatus();
  }

  absl::Status ReadAll(JsonlReader& reader) {
    std::vector<JsonlLine> lines;
    do {
      lines.clear();
      size_t bytes = 0;
      while (lines.size() < kBatchLines && bytes < kBatchBytes) {
        JsonlLine line;
        SLIPWAY_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
        if (!more) break;
        bytes += line.text.size();
        lines.push_back(std::move(line));
      }
      SLIPWAY_RETURN_IF_ERROR(EncodeAndWrite(lines));
      ReportProgress(reader, /*last=*/lines.empty());
    } while (!lines.empty());
    return absl::OkStatus();
  }

  absl::Status EncodeAndWrite(const std::vector<JsonlLine>& lines) {
    std::vector<std::optional<absl::StatusOr<Documents>>> encoded(lines.size());
    ParallelFor(static_cast<int64_t>(lines.size()), WorkerCount(options_.workers), [&](int64_t i) {
      encoded[static_cast<size_t>(i)] = EncodeLine(tokenizer_, options_, lines[static_cast<size_t>(i)].text);
    });
    for (size_t i = 0; i < lines.size(); ++i) {
      ++report_.lines;
      const absl::StatusOr<Documents>& documents = *encoded[i];
      if (documents.ok()) {
        SLIPWAY_RETURN_IF_ERROR(Write(*documents));
        continue;
      }
      if (!options_.skip_bad_lines) {
        return Annotate(documents.status(), StrCat(options_.input, ":", lines[i].number));
      }
      ++report_.skipped;
      if (report_.skipped_lines.size() < ChatReport::kMaxDroppedLines) {
        report_.skipped_lines.push_back({lines[i].number, std::string(documents.status().message())});
      }
    }
    return absl::OkStatus();
  }

  absl::Status Write(const Documents& documents) {
    for (size_t k = 0; k < documents.size(); ++k) {
      for (const std::vector<int32_t>& sequence : documents[k]) {
        SLIPWAY_RETURN_IF_ERROR(writers_[k].AddSequence(sequence));
      }
      writers_[k].EndDocument();
      PreparedOutput& output = report_.outputs[k];
      ++output.documents;
      if (documents[k].empty()) ++output.empty_documents;
      output.sequences = writers_[k].sequence_count();
      output.tokens = writers_[k].token_count();
    }
    return absl::OkStatus();
  }

  void ReportProgress(const JsonlReader& reader, bool last) {
    constexpr absl::Duration kPeriod = absl::Milliseconds(200);
    const absl::Time now = absl::Now();
    if (!options_.progress || (!last && now - last_progress_ < kPeriod)) return;
    last_progress_ = now;
    PrepareProgress progress{.bytes_read = reader.bytes_read(), .bytes_total = reader.size(), .lines = report_.lines};
    for (const PreparedOutput& output : report_.outputs) progress.tokens += output.tokens;
    options_.progress(progress);
  }

  // The error at hand matters more than one of removing.
  void RemoveOutputs() {
    writers_.clear();
    for (const PreparedOutput& output : report_.outputs) {
      for (const char* suffix : {".idx", ".bin"}) files_.RemoveFile(output.prefix + suffix).IgnoreError();
    }
  }

  FileSystem& files_;
  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  std::vector<format::IndexedDatasetWriter> writers_;
  PrepareReport report_;
  absl::Time last_progress_ = absl::InfinitePast();
};

}  // namespace

absl::StatusOr<PrepareReport> PrepareIndexedDatasets(FileSystem& files, const Tokenizer& tokenizer,
                                                     const PrepareOptions& options) {
  return Preparation(files, tokenizer, options).Run();
}

}  // namespace slipway::engine::corpus
