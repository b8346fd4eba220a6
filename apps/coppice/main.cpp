// coppice VERB [flags]: finds the verb and turns errors into one line and a documented exit code.
#include <array>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>

#include "base/error.h"
#include "verbs.h"

namespace {

struct Verb {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};

constexpr std::array kVerbs{
    Verb{"serve", "answer OpenAI-style HTTP requests; flags are vLLM's", coppice::run_serve},
    Verb{"generate", "continue a prompt; --stats compares plain, chain and tree",
         coppice::run_generate},
    Verb{"chat", "talk to a model in the terminal", coppice::run_chat},
    Verb{"top", "watch a running server in the terminal", coppice::run_top},
    Verb{"run-batch", "answer a file of requests (OpenAI's batch format)", coppice::run_batch},
    Verb{"bench serve", "measure a running server; flags and output are vLLM's",
         coppice::run_bench_serve},
    Verb{"bench sweep", "the same at several loads, with a Pareto plot", coppice::run_bench_sweep},
    Verb{"bench latency", "seconds for one batch, without a server", coppice::run_bench_latency},
    Verb{"bench throughput", "tokens per second of many prompts, without a server",
         coppice::run_bench_throughput},
    Verb{"bench", "time kernels and whole rounds on random weights", coppice::run_bench},
    Verb{"inspect", "what is in a checkpoint: architecture, sizes, format faults",
         coppice::run_inspect},
    Verb{"plan", "does a model fit a machine, how fast is it there, what limits it",
         coppice::run_plan},
    Verb{"quantize", "write a BF16 or FP8 checkpoint's routed experts as INT4 group 32",
         coppice::run_quantize},
    Verb{"repack", "write a model's routed experts as the CUDA kernels read them",
         coppice::run_repack},
};

void print_usage(std::FILE* out) {
  std::fprintf(out, "usage: coppice VERB [flags]    (coppice VERB --help lists the flags)\n\n");
  for (const Verb& verb : kVerbs)
    std::fprintf(out, "  %-16.*s %.*s\n", static_cast<int>(verb.name.size()), verb.name.data(),
                 static_cast<int>(verb.summary.size()), verb.summary.data());
  std::fprintf(out,
               "\nexit codes: 0 done, 1 internal fault, 2 bad flag or request, 3 damaged file, 4 "
               "not found,\n"
               "            5 unsupported, 6 out of memory, 7 unavailable\n");
}

// A full disk, a closed pipe: what was to be printed is not all there.
int after_output(int code) {
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written) return code;
  std::fprintf(stderr, "coppice: standard output could not be written\n");
  return code == 0 ? coppice::exit_code(coppice::ErrorKind::kUnavailable) : code;
}

}  // namespace

int main(int argc, char** argv) {
  // -tp N, as vLLM and SGLang users type it.
  static std::array<char, 5> tensor_parallel{"--tp"};
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "-tp") argv[i] = tensor_parallel.data();
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name.empty() || name == "--help" || name == "-h" || name == "help") {
    print_usage(name.empty() ? stderr : stdout);
    return after_output(name.empty() ? 2 : 0);
  }
  if (name == "--version" || name == "version") {
    std::printf("coppice %s\n", COPPICE_VERSION);
    return after_output(0);
  }
  try {
    // A verb of two words comes before that of its first one.
    const std::string two_words = std::string(name) + " " + (argc > 2 ? argv[2] : "");
    for (const Verb& verb : kVerbs) {
      if (verb.name == two_words) return after_output(verb.run(argc - 2, argv + 2));
      if (verb.name == name) return after_output(verb.run(argc - 1, argv + 1));
    }
    std::fprintf(stderr, "coppice: unknown verb '%s'\n", argv[1]);
    print_usage(stderr);
    return 2;
  } catch (const coppice::Error& error) {
    std::fprintf(stderr, "coppice: %s\n", error.what());
    return coppice::exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "coppice: out of memory\n");
    return coppice::exit_code(coppice::ErrorKind::kOutOfMemory);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "coppice: internal fault: %s\n", error.what());
    return 1;
  }
}
