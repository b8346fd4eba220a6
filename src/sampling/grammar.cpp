#include "sampling/grammar.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace {

// The first warning that the compile running on this thread gave: what it would silently leave out.
thread_local std::string first_warning;

constexpr int kWarningLevel = 2;  // of xgrammar's log

}  // namespace

// xgrammar's log: nothing is printed.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& /*file*/, int /*lineno*/,
                               const std::string& message) {
  throw std::runtime_error(message);
}
void LogMessageImpl(const std::string& /*file*/, int /*lineno*/, int level,
                    const std::string& message) {
  if (level >= kWarningLevel && first_warning.empty()) first_warning = message;
}

}  // namespace xgrammar

namespace coppice {
namespace {

// Longest run of white space between the tokens of a JSON value: enough for indented output, and
// an end to models that fall into emitting spaces.
constexpr int kMaxWhitespace = 12;

// Which ids bring an output to its end: stop ids, the quote inside of a string, else what closes
// JSON's brackets, then the longest text, which is the fastest way through what is fixed.
class ClosingOrder {
 public:
  ClosingOrder(const std::vector<std::string>& vocabulary, std::span<const std::int32_t> stop_ids)
      : stops_(stop_ids.begin(), stop_ids.end()),
        quote_(id_of(vocabulary, "\"")),
        letter_(id_of(vocabulary, "z")) {
    for (const char* text : {"}", "]", "\"", ",", ":", "0"})
      if (const std::int32_t id = id_of(vocabulary, text); id >= 0) brackets_.push_back(id);
    for (const std::string& text : vocabulary) {
      const bool blank = text.find_first_not_of(" \t\r\n") == std::string::npos;
      lengths_.push_back(blank ? 0 : static_cast<std::int32_t>(text.size()));
    }
  }

  std::int32_t choose(std::span<const std::int32_t> mask) const {
    for (const std::int32_t id : stops_)
      if (has(mask, id)) return id;
    // Brackets are text where any letter may come; no word of JSON begins with this one.
    const bool in_string = has(mask, letter_);
    if (in_string && has(mask, quote_)) return quote_;
    for (const std::int32_t id : brackets_)
      if (!in_string && has(mask, id)) return id;
    std::int32_t best = -1;
    for (std::size_t word = 0; word < mask.size(); ++word) {
      auto bits = static_cast<std::uint32_t>(mask[word]);
      for (; bits != 0; bits &= bits - 1) {
        const auto id = static_cast<std::int32_t>(word * 32) + std::countr_zero(bits);
        if (best < 0 || length(id) > length(best)) best = id;
      }
    }
    return best;
  }

 private:
  static std::int32_t id_of(const std::vector<std::string>& vocabulary, std::string_view text) {
    const auto found = std::find(vocabulary.begin(), vocabulary.end(), text);
    return found == vocabulary.end() ? -1 : static_cast<std::int32_t>(found - vocabulary.begin());
  }
  static bool has(std::span<const std::int32_t> mask, std::int32_t id) {
    return id >= 0 && mask_has(mask, id);
  }
  std::int32_t length(std::int32_t id) const {
    return static_cast<std::size_t>(id) < lengths_.size() ? lengths_[static_cast<std::size_t>(id)]
                                                          : 0;
  }

  std::vector<std::int32_t> stops_, brackets_;  // ids in order of preference
  std::int32_t quote_, letter_;                 // -1: none
  std::vector<std::int32_t> lengths_;           // bytes of each id, 0 for white space
};

class XgrammarMatcher final : public GrammarMatcher {
 public:
  XgrammarMatcher(const xgrammar::CompiledGrammar& grammar,
                  std::shared_ptr<const ClosingOrder> closing, std::size_t num_words)
      : matcher_(grammar),
        closing_(std::move(closing)),
        num_words_(static_cast<std::int64_t>(num_words)) {}

  void fill(std::span<std::int32_t> mask) override {
    COPPICE_CHECK_EQ(std::ssize(mask), num_words_);
    DLTensor tensor{.data = mask.data(),
                    .device = {kDLCPU, 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = &num_words_,
                    .strides = nullptr,
                    .byte_offset = 0};
    if (matcher_.IsTerminated())
      std::fill(mask.begin(), mask.end(), 0);
    else
      matcher_.FillNextTokenBitmask(&tensor);
  }
  bool accept(std::int32_t id) override { return matcher_.AcceptToken(id); }
  void undo() override { matcher_.Rollback(1); }
  std::int32_t closing_id(std::span<const std::int32_t> mask) const override {
    return closing_->choose(mask);
  }

 private:
  xgrammar::GrammarMatcher matcher_;
  std::shared_ptr<const ClosingOrder> closing_;
  std::int64_t num_words_;
};

class XgrammarGrammar final : public Grammar {
 public:
  XgrammarGrammar(xgrammar::CompiledGrammar compiled, std::shared_ptr<const ClosingOrder> closing,
                  std::size_t num_words)
      : compiled_(std::move(compiled)), closing_(std::move(closing)), num_words_(num_words) {}
  std::unique_ptr<GrammarMatcher> start() const override {
    return std::make_unique<XgrammarMatcher>(compiled_, closing_, num_words_);
  }
  std::int64_t num_bytes() const override {
    return static_cast<std::int64_t>(compiled_.MemorySizeBytes());
  }

 private:
  xgrammar::CompiledGrammar compiled_;
  std::shared_ptr<const ClosingOrder> closing_;
  std::size_t num_words_;
};

class XgrammarCompiler final : public GrammarCompiler {
 public:
  XgrammarCompiler(const std::vector<std::string>& vocabulary, std::int64_t vocab_size,
                   const std::vector<std::int32_t>& stop_ids)
      : closing_(std::make_shared<ClosingOrder>(vocabulary, stop_ids)),
        compiler_(xgrammar::TokenizerInfo(vocabulary, xgrammar::VocabType::RAW,
                                          static_cast<int>(vocab_size), stop_ids),
                  /*max_threads=*/1, /*cache_enabled=*/false),
        num_words_(mask_words(vocab_size)) {}

  std::shared_ptr<const Grammar> compile(const GrammarSpec& spec) const override {
    first_warning.clear();
    try {
      auto grammar = std::make_shared<XgrammarGrammar>(compile_spec(spec), closing_, num_words_);
      if (!first_warning.empty() && !spec.lenient)
        throw Error(ErrorKind::kInvalidArgument, first_warning);
      std::vector<std::int32_t> mask(num_words_);
      grammar->start()->fill(mask);
      if (std::all_of(mask.begin(), mask.end(), [](std::int32_t word) { return word == 0; }))
        throw Error(ErrorKind::kInvalidArgument, "no output can match it");
      return grammar;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw Error(ErrorKind::kInvalidArgument, first_line(error.what()));
    }
  }

 private:
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  xgrammar::CompiledGrammar compile_spec(const GrammarSpec& spec) const {
    xgrammar::GrammarCompiler compiler = compiler_;  // shares its state
    switch (spec.kind) {
      case GrammarSpec::Kind::kJson:
        return compiler.CompileJSONSchema("{}", true, std::nullopt, std::nullopt, true,
                                          kMaxWhitespace);
      case GrammarSpec::Kind::kJsonSchema:
        return compiler.CompileJSONSchema(spec.text, true, std::nullopt, std::nullopt, true,
                                          kMaxWhitespace);
      case GrammarSpec::Kind::kRegex:
        return compiler.CompileRegex(spec.text);
      case GrammarSpec::Kind::kEbnf:
        return compiler.CompileGrammar(spec.text);
      case GrammarSpec::Kind::kLark:
        return compiler.CompileLark(spec.text);
      case GrammarSpec::Kind::kStructuralTag:
        return compiler.CompileStructuralTag(spec.text);
    }
    throw Error(ErrorKind::kInvalidArgument, "unknown kind of grammar");
  }

  std::shared_ptr<const ClosingOrder> closing_;
  xgrammar::GrammarCompiler compiler_;
  std::size_t num_words_;
};

}  // namespace

bool has_grammars() {
  return true;
}

std::unique_ptr<GrammarCompiler> make_grammar_compiler(const Tokenizer& tokenizer,
                                                       std::int64_t vocab_size,
                                                       const std::vector<std::int64_t>& stop_ids) {
  // Added tokens get bytes that no text has, so that they match by their id alone. Ids without
  // bytes, padding among them, never match.
  std::vector<std::string> vocabulary;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    vocabulary.push_back(tokenizer.is_added(id) ? "\xff\xfe" + std::to_string(id)
                                                : std::string(tokenizer.token_bytes(id)));
  if (std::ssize(vocabulary) > vocab_size) vocabulary.resize(static_cast<std::size_t>(vocab_size));
  std::vector<std::int32_t> stops;
  for (const std::int64_t id : stop_ids) stops.push_back(static_cast<std::int32_t>(id));
  if (stops.empty()) return nullptr;  // no output could end
  return std::make_unique<XgrammarCompiler>(vocabulary, vocab_size, stops);
}

}  // namespace coppice
