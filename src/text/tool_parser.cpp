#include "text/tool_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "text/json_tool_parser.h"
#include "text/kimi_tool_parser.h"

namespace coppice {
namespace {

constexpr std::array<std::pair<std::string_view, ToolFormat>, 10> kNames = {{
    {"kimi_k2", ToolFormat::kKimi},
    {"kimi_k25", ToolFormat::kKimi},
    {"hermes", ToolFormat::kHermes},
    {"qwen3", ToolFormat::kHermes},
    {"qwen25", ToolFormat::kHermes},
    {"qwen", ToolFormat::kHermes},
    {"json", ToolFormat::kJson},
    {"llama3_json", ToolFormat::kJson},
    {"llama4_json", ToolFormat::kJson},
    {"llama3", ToolFormat::kJson},
}};

}  // namespace

std::optional<ToolFormat> tool_format_of(std::string_view parser_name) {
  const auto found = std::find_if(kNames.begin(), kNames.end(),
                                  [&](const auto& entry) { return entry.first == parser_name; });
  if (found == kNames.end()) return std::nullopt;
  return found->second;
}

std::string tool_format_names() {
  std::string text;
  for (const auto& [name, format] : kNames) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

std::unique_ptr<ToolParser> make_tool_parser(const ToolSyntax& syntax, std::size_t first_index) {
  COPPICE_CHECK(syntax.format != ToolFormat::kNone);
  if (syntax.format == ToolFormat::kKimi) return std::make_unique<KimiToolParser>(first_index);
  return std::make_unique<JsonToolParser>(syntax, first_index);
}

}  // namespace coppice
