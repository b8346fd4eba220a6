// Flags from a flat YAML file.
#include <set>
#include <sstream>

#include "base/error.h"
#include "io/text_file.h"
#include "server/command_line.h"

namespace coppice {
namespace {

constexpr std::string_view kBlank = " \t\r";

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kBlank) - begin + 1));
}

// Without a comment: '#' at the start or behind a blank, outside of quotes.
std::string_view without_comment(std::string_view line) {
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (quote != 0) {
      if (line[i] == quote) quote = 0;
    } else if (line[i] == '"' || line[i] == '\'') {
      quote = line[i];
    } else if (line[i] == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) {
      return line.substr(0, i);
    }
  }
  return line;
}

std::string unquoted(const std::string& text) {
  const bool quoted =
      text.size() >= 2 && (text[0] == '"' || text[0] == '\'') && text.back() == text[0];
  return quoted ? text.substr(1, text.size() - 2) : text;
}

std::vector<std::string> list_items(const std::string& text) {
  std::vector<std::string> items;
  std::string_view rest = std::string_view(text).substr(1, text.size() - 2);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    if (const std::string item = trimmed(rest.substr(0, comma)); !item.empty())
      items.push_back(unquoted(item));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return items;
}

void add_value(const std::string& flag, const std::string& value, std::vector<std::string>& out) {
  if (value == "null") return;
  if (value == "false") {
    out.push_back("--no-" + flag.substr(2));
    return;
  }
  out.push_back(flag);
  if (value == "true" || value.empty()) return;
  if (value.starts_with('[') && value.ends_with(']')) {
    for (std::string& item : list_items(value)) out.push_back(std::move(item));
  } else {
    out.push_back(unquoted(value));
  }
}

}  // namespace

std::vector<std::string> read_config_file(const std::string& path) {
  std::istringstream file(read_text_file(path, "--config " + path));
  std::vector<std::string> out;
  std::string raw;
  std::set<std::string> keys;
  bool in_list = false;
  for (int number = 1; std::getline(file, raw); ++number) {
    const std::string line(without_comment(raw));
    const std::string text = trimmed(line);
    if (text.empty() || text == "---") continue;
    const auto fail = [&](const std::string& cause) {
      throw Error(ErrorKind::kBadFile, path + ": line " + std::to_string(number) + ": " + cause);
    };
    if (text.starts_with("- ")) {
      if (!in_list) fail("a list item without a key above it");
      out.push_back(unquoted(trimmed(std::string_view(text).substr(2))));
      continue;
    }
    if (line[0] == ' ' || line[0] == '\t') fail("nested maps are not supported; use JSON text");
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos) fail("expected 'key: value'");
    const std::string value = trimmed(std::string_view(text).substr(colon + 1));
    in_list = value.empty();
    const std::string key = trimmed(std::string_view(text).substr(0, colon));
    if (!keys.insert(key).second) fail("the key '" + key + "' is there twice");
    if (key == "config") fail("a file cannot name another");
    add_value("--" + key, value, out);
  }
  return out;
}

}  // namespace coppice
