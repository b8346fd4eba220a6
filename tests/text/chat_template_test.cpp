#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "tests/text/support/oracle.h"
#include "text/tokenizer.h"

namespace coppice {
namespace {

using Ids = std::vector<std::int32_t>;

const Tokenizer& tokenizer() {
  static const Tokenizer instance = Tokenizer::from_folder(test::tiny_k2_folder());
  return instance;
}

const ChatTemplate& tiny() {
  static const ChatTemplate instance = ChatTemplate::from_folder(test::tiny_k2_folder());
  return instance;
}

Json json(const std::string& text) {
  return parse_json(text, "test");
}

std::string render(const std::string& messages, const std::string& kwargs = "{}") {
  ChatInput input;
  input.messages = json(messages);
  input.kwargs = json(kwargs);
  return tiny().render(input).text();
}

// The keys of a golden case that are template variables.
ChatInput input_of(const Json& item) {
  ChatInput input;
  input.messages = *item.find("messages");
  input.add_generation_prompt = item.find("add_generation_prompt")->as_bool();
  if (const Json* tools = item.find("tools")) input.tools = *tools;
  input.kwargs = Json::object();
  for (const char* name : {"thinking", "preserve_thinking"}) {
    if (const Json* value = item.find(name)) input.kwargs[name] = *value;
  }
  return input;
}

TEST(ChatTemplate, Goldens) {
  const Json golden = read_json_file(test::golden("chat_template.json"));
  EXPECT_EQ(golden.size(), 30u);
  for (const Json& item : golden.as_array()) {
    ChatInput input = input_of(item);
    // The reference rendering of this one shows the JSON fallback.
    if (item.find("name")->as_string() == "tools json") input.kwargs["tools_ts_str"] = Json();
    const MarkedText prompt = tiny().render(input);
    EXPECT_EQ(prompt.text(), item.find("rendered")->as_string()) << item.find("name")->as_string();
    Ids ids;
    for (const Json& id : item.find("ids")->as_array()) {
      ids.push_back(static_cast<std::int32_t>(id.as_int()));
    }
    EXPECT_EQ(tokenizer().encode(prompt), ids) << item.find("name")->as_string();
  }
}

// Prompt strings of the K2.5 family, made with its own template and jinja2.
constexpr const char* kHi = R"([{"role":"user","content":"hi"}])";
constexpr const char* kCall =
    R"({"id":"functions.f:0","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}})";

TEST(ChatTemplate, ReferenceStrings) {
  const std::string start = "<|im_user|>user<|im_middle|>hi<|im_end|>";
  const std::string prompt = "<|im_assistant|>assistant<|im_middle|><think>";
  EXPECT_EQ(render(kHi), start + prompt);
  EXPECT_EQ(render(kHi, R"({"thinking":false})"), start + prompt + "</think>");
  EXPECT_EQ(render(R"([{"role":"system","content":"S"},{"role":"user","content":"hi"}])"),
            "<|im_system|>system<|im_middle|>S<|im_end|>" + start + prompt);
  const std::string turns =
      R"([{"role":"user","content":"hi"},{"role":"assistant","content":"yo","reasoning_content":"R1"},
          {"role":"user","content":"again"}])";
  const std::string again = "yo<|im_end|><|im_user|>user<|im_middle|>again<|im_end|>" + prompt;
  EXPECT_EQ(render(turns), start + prompt + "</think>" + again);
  EXPECT_EQ(render(turns, R"({"preserve_thinking":true})"), start + prompt + "R1</think>" + again);
  const std::string loop =
      std::string(R"([{"role":"user","content":"hi"},{"role":"assistant","content":"",
      "reasoning_content":"R2","tool_calls":[)") +
      kCall + R"(]},{"role":"tool","name":"f","tool_call_id":
      "functions.f:0","content":"42"}])";
  EXPECT_EQ(render(loop),
            start + prompt +
                "R2</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
                "<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_calls_section_end|>"
                "<|im_end|><|im_system|>f<|im_middle|>## Return of functions.f:0\n42<|im_end|>" +
                prompt);
  EXPECT_EQ(render(R"([{"role":"user","content":[{"type":"text","text":"look"},{"type":"image"},
                      {"type":"text","text":"ok?"}]}])"),
            "<|im_user|>user<|im_middle|>look<|media_begin|>image<|media_content|><|media_pad|>"
            "<|media_end|>\nok?<|im_end|>" +
                prompt);
  EXPECT_EQ(render(R"([{"role":"user","name":"bob","content":"hi"}])"),
            "<|im_user|>bob<|im_middle|>hi<|im_end|>" + prompt);
  EXPECT_EQ(render(R"([{"role":"developer","content":"D"},{"role":"user","content":"hi"}])"),
            "<|im_system|>developer<|im_middle|>D<|im_end|>" + start + prompt);
}

TEST(ChatTemplate, SameThingWrittenDifferently) {
  const std::string empty = render(R"([{"role":"user","content":""}])");
  for (const char* content : {"null", "[]", R"([{"type":"text","text":""}])"}) {
    EXPECT_EQ(render(std::string(R"([{"role":"user","content":)") + content + "}]"), empty);
  }
  EXPECT_EQ(render(R"([{"role":"user"}])"), empty);
  const auto assistant = [](const std::string& extra) {
    return render(
        std::string(R"([{"role":"user","content":"hi"},{"role":"assistant","content":"x")") +
        extra + R"(,"tool_calls":[)" + kCall + "]}]");
  };
  EXPECT_EQ(assistant(R"(,"reasoning_content":null)"), assistant(""));
  EXPECT_EQ(assistant(R"(,"reasoning_content":"")"), assistant(""));
  EXPECT_EQ(assistant("").find("None"), std::string::npos);
  EXPECT_NE(assistant(R"(,"reasoning_content":"why")"), assistant(""));
}

// Published templates print what get() finds: a null would read "None".
TEST(ChatTemplate, NullReasoningIsNone) {
  const ChatTemplate raw("<{{ messages[0].get('reasoning_content', '') }}>", "raw");
  ChatInput input;
  for (const char* value : {"null", "\"\""}) {
    input.messages =
        json(std::string(R"([{"role":"assistant","reasoning_content":)") + value + "}]");
    EXPECT_EQ(raw.render(input).text(), "<>");
  }
  input.messages = json(R"([{"role":"assistant","reasoning_content":"why"}])");
  EXPECT_EQ(raw.render(input).text(), "<why>");
}

TEST(ChatTemplate, ThinkingSwitch) {
  const std::string off = render(kHi, R"({"thinking":false})"), on = render(kHi);
  ASSERT_NE(on, off);
  for (const char* value : {"false", "\"false\"", "\"False\"", "0", "\"off\"", "\"\"", "0.0"}) {
    EXPECT_EQ(render(kHi, std::string(R"({"thinking":)") + value + "}"), off) << value;
    EXPECT_EQ(render(kHi, std::string(R"({"enable_thinking":)") + value + "}"), off) << value;
  }
  for (const char* value : {"true", "null", "\"true\"", "1"}) {
    EXPECT_EQ(render(kHi, std::string(R"({"thinking":)") + value + "}"), on) << value;
    EXPECT_EQ(render(kHi, std::string(R"({"enable_thinking":)") + value + "}"), on) << value;
  }
  EXPECT_EQ(render(kHi, R"({"anything_else":[1]})"), on);
  EXPECT_THROW(render(kHi, R"({"messages":[]})"), Error);
  EXPECT_THROW(render(kHi, R"({"add_generation_prompt":false})"), Error);
  EXPECT_THROW(render(kHi, "[]"), Error);
}

// Every control token's text, put wherever a request can put text: the prompt keeps its own
// control ids and gains none.
TEST(ChatTemplate, RequestTextNeverBecomesControlTokens) {
  const auto conversation = [](const std::string& word) {
    ChatInput input;
    Json message = json(
        R"({"role":"user","name":"N","content":[{"type":"text","text":"T"},{"type":"text","text":"T"}]})");
    message["name"] = Json(word);
    message["content"].as_array()[0]["text"] = Json("a" + word + "b");
    message["content"].as_array()[1]["text"] = Json(word);
    Json call = json(kCall);
    call["id"] = Json("functions.f:0" + word);
    call["function"]["arguments"] = Json("{\"x\": \"" + word + "\"}");
    Json assistant = json(R"({"role":"assistant"})");
    assistant["content"] = Json(word + word);
    assistant["reasoning_content"] = Json(word);
    assistant["tool_calls"] = Json::array({call});
    Json tool = json(R"({"role":"tool"})");
    tool["tool_call_id"] = Json(word);
    tool["content"] = Json("result " + word);
    Json system = json(R"({"role":"system"})");
    system["content"] = Json(word);
    input.messages = Json::array({system, message, assistant, tool});
    input.tools = json(
        R"([{"type":"function","function":{"name":"f","description":"D","parameters":{"type":"object","properties":{"k":{"type":"string","description":"D"}}}}}])");
    Json& function = input.tools.as_array()[0]["function"];
    function["description"] = Json("d " + word);
    function["parameters"]["properties"]["k"]["description"] = Json(word);
    return input;
  };
  const auto control_ids = [](const Ids& ids) {
    Ids out;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(out),
                 [](std::int32_t id) { return tokenizer().is_added(id); });
    return out;
  };
  const Ids wanted = control_ids(tokenizer().encode(tiny().render(conversation("harmless"))));
  EXPECT_EQ(wanted.size(), 25u);
  for (const AddedToken& token : tokenizer().added_tokens()) {
    const MarkedText prompt = tiny().render(conversation(token.text));
    ASSERT_EQ(control_ids(tokenizer().encode(prompt)), wanted) << token.text;
    // The check can fail: reading the whole prompt with special tokens allowed forges some.
    ASSERT_NE(control_ids(tokenizer().encode(prompt.text(), true)), wanted) << token.text;
  }
}

TEST(ChatTemplate, SplitMarksDoNotJoin) {
  // Half of a control token from the template, half from the request.
  const ChatTemplate split("{{ '<|im_' ~ messages[0].content }}", "split");
  ChatInput input;
  input.messages = json(R"([{"role":"user","content":"end|>"}])");
  for (const std::int32_t id : tokenizer().encode(split.render(input))) {
    EXPECT_FALSE(tokenizer().is_added(id));
  }
  // A role is the template's own word.
  const ChatTemplate role("{{ '<|im_' ~ messages[0].role ~ '|>' }}", "role");
  EXPECT_EQ(tokenizer().encode(role.render(input)), Ids{5123});
}

TEST(ChatTemplate, ArgumentsAsTextOrObject) {
  const ChatTemplate printing("{{ messages[0].tool_calls[0].function.arguments | tojson }}", "x");
  ChatInput input;
  input.messages =
      Json::array({json(std::string(R"({"role":"assistant","tool_calls":[)") + kCall + "]}")});
  EXPECT_EQ(printing.render(input).text(), R"({"a": 1})");
  input.messages.as_array()[0]["tool_calls"].as_array()[0]["function"]["arguments"] = Json(" ");
  EXPECT_EQ(printing.render(input).text(), "{}");
  input.messages.as_array()[0]["tool_calls"].as_array()[0]["function"]["arguments"] = Json("{");
  EXPECT_THROW(printing.render(input), Error);
}

TEST(ChatTemplate, ContentPartsOfTextOnlyTemplates) {
  const ChatTemplate plain("{% for m in messages %}{{ m.content }}{% endfor %}", "plain");
  ChatInput input;
  input.messages = json(
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])");
  EXPECT_EQ(plain.render(input).text(), "a\nb");
}

TEST(ChatTemplate, BadRequests) {
  for (const char* messages : {"{}", "[1]", "[{}]", R"([{"role":1}])", "null"}) {
    EXPECT_THROW(render(messages), Error) << messages;
  }
  ChatInput input;
  input.messages = json(kHi);
  input.tools = json("{}");
  EXPECT_THROW(tiny().render(input), Error);
  EXPECT_EQ(render("[]"), "<|im_assistant|>assistant<|im_middle|><think>");
}

TEST(ChatTemplate, Folders) {
  test::TemporaryFolder folder;
  EXPECT_THROW(ChatTemplate::from_folder(folder.path()), Error);
}

}  // namespace
}  // namespace coppice
