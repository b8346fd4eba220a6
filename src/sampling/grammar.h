// What an output may be: a JSON schema, a regular expression or a grammar, compiled against a
// vocabulary, and its state along one sequence. Built over xgrammar (grammar.cpp), or absent
// (no_grammar.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sampling/token_mask.h"
#include "text/tokenizer.h"

namespace coppice {

struct GrammarSpec {
  enum class Kind {
    kJson,           // any JSON value; text is empty
    kJsonSchema,     // text: the schema as JSON
    kRegex,          // text: the whole output matches it
    kEbnf,           // text: rules NAME ::= ..., the first of them called root
    kLark,           // text: rules name: ..., the first of them called start
    kStructuralTag,  // text: xgrammar's JSON for tags, token marks and their contents
  };
  Kind kind = Kind::kJson;
  std::string text = {};
  bool lenient = false;  // what cannot be enforced is left out; else it is an error
  friend bool operator==(const GrammarSpec&, const GrammarSpec&) = default;
};

// One state per token that was accepted. Not thread-safe.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;
  // Sets the bits of the ids that may come next, clears all others; mask_words(vocab_size) words.
  virtual void fill(std::span<std::int32_t> mask) = 0;
  // False, and nothing changes, when the id may not come next.
  virtual bool accept(std::int32_t id) = 0;
  // Takes back the last accepted id.
  virtual void undo() = 0;
  // Of the ids in a mask that fill made: one that leads to the end of the output soon. -1: none.
  virtual std::int32_t closing_id(std::span<const std::int32_t> mask) const = 0;
};

// Compiled; immutable and thread-safe.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual std::unique_ptr<GrammarMatcher> start() const = 0;
  virtual std::int64_t num_bytes() const = 0;
};

// Thread-safe. Stop ids may come exactly where the output may end; added tokens come only where a
// structural tag names them by id, never as text.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Throws Error(kInvalidArgument) with the cause. Takes from microseconds to seconds.
  virtual std::shared_ptr<const Grammar> compile(const GrammarSpec& spec) const = 0;
};

// Whether this build has grammars.
bool has_grammars();

// Null in a build without. vocab_size: of the model, at least the tokenizer's.
std::unique_ptr<GrammarCompiler> make_grammar_compiler(const Tokenizer& tokenizer,
                                                       std::int64_t vocab_size,
                                                       const std::vector<std::int64_t>& stop_ids);

}  // namespace coppice
