// coppice inspect MODEL: what is in a checkpoint, and its format faults.
#include "io/inspect_report.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "io/model_path.h"
#include "model/load_model.h"
#include "parse_flags.h"
#include "verbs.h"

namespace coppice {

// Throws the Error of the first fault after printing the report, and that of a checkpoint that
// cannot be opened.
int run_inspect(int argc, char** argv) {
  CLI::App app("What is in a checkpoint: architecture, sizes by part, storage types, faults");
  app.name("coppice inspect");
  std::string model;
  bool tensors = false, values = false, json = false;
  app.add_option("model", model, "folder, .safetensors or .gguf file, or hub id")->required();
  app.add_flag("--tensors", tensors, "list every tensor");
  app.add_flag("--values", values, "read all data: NaN, infinity, scales that cannot be right");
  app.add_flag("--json", json, "machine-readable output");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  const std::filesystem::path path = resolve_model(model);
  const InspectReport report = inspect_checkpoint(path, {}, {.values = values});
  const std::string text = json ? write_json(report_as_json(report, tensors), {.indent = 2}) + "\n"
                                : format_report(report, tensors);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (report.faults.empty()) {
    // A lone .safetensors file is no network.
    if (path.extension() == ".safetensors") return 0;
    check_loadable(path.string());
    if (!json) std::puts("the network can be loaded");
    return 0;
  }
  const std::size_t more = report.faults.size() - 1;
  throw Error(report.faults[0].kind,
              report.faults[0].message +
                  (more > 0 ? " (and " + std::to_string(more) + " more faults)" : ""));
}

}  // namespace coppice
