// Flags from a flat YAML file.
#include <algorithm>
#include <cctype>
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

// Commas within quotes do not separate.
std::vector<std::string> list_items(const std::string& text) {
  std::vector<std::string> items;
  std::string item;
  char quote = 0;
  const auto end_item = [&] {
    if (const std::string found = trimmed(item); !found.empty()) items.push_back(unquoted(found));
    item.clear();
  };
  for (const char c : std::string_view(text).substr(1, text.size() - 2)) {
    if (c == ',' && quote == 0) {
      end_item();
      continue;
    }
    if (quote == 0 && (c == '"' || c == '\''))
      quote = c;
    else if (c == quote)
      quote = 0;
    item += c;
  }
  end_item();
  return items;
}

// YAML's spellings of true and false, as vLLM's reader takes them.
bool is_one_of(const std::string& value, std::initializer_list<std::string_view> words) {
  std::string lower = value;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(words.begin(), words.end(), lower) != words.end();
}

void add_value(const std::string& flag, const std::string& value, std::vector<std::string>& out) {
  if (is_one_of(value, {"null", "~"})) return;
  if (is_one_of(value, {"false", "no", "off"})) {
    out.push_back("--no-" + flag.substr(2));
    return;
  }
  out.push_back(flag);
  if (value.empty() || is_one_of(value, {"true", "yes", "on"})) return;
  if (value.starts_with('[') && value.ends_with(']')) {
    for (std::string& item : list_items(value)) out.push_back(std::move(item));
  } else {
    out.push_back(unquoted(value));
  }
}

}  // namespace

std::vector<std::string> read_config_file(const std::string& path) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  std::string content = read_text_file(path, "--config " + path);
  if (content.starts_with(kByteOrderMark)) content.erase(0, kByteOrderMark.size());
  std::istringstream file(std::move(content));
  std::vector<std::string> out;
  std::string raw;
  std::set<std::string> keys;
  bool in_list = false;
  for (int number = 1; std::getline(file, raw); ++number) {
    const std::string line(without_comment(raw));
    const std::string text = trimmed(line);
    if (text.empty() || text == "---" || text == "...") continue;
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
    std::string key = unquoted(trimmed(std::string_view(text).substr(0, colon)));
    std::replace(key.begin(), key.end(), '_', '-');
    if (!keys.insert(key).second) fail("the key '" + key + "' is there twice");
    if (key == "config") fail("a file cannot name another");
    add_value("--" + key, value, out);
  }
  return out;
}

}  // namespace coppice
