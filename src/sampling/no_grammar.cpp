// Builds without xgrammar: requests that need a grammar are refused by the server.
#include "sampling/grammar.h"

namespace coppice {

bool has_grammars() {
  return false;
}

std::unique_ptr<GrammarCompiler> make_grammar_compiler(const Tokenizer&, std::int64_t,
                                                       const std::vector<std::int64_t>&) {
  return nullptr;
}

}  // namespace coppice
