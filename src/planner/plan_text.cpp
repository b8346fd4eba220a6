// The plan as text for a terminal.
#include <algorithm>
#include <cmath>

#include "planner/plan.h"
#include "planner/print.h"

namespace coppice {
namespace {

constexpr double kGiB = 1073741824.0;

long long number(std::int64_t value) {
  return static_cast<long long>(value);
}

std::string tokens_text(std::int64_t tokens) {
  const auto count = static_cast<double>(tokens);
  if (tokens >= 10'000'000) return print("%.0fM", count / 1e6);
  if (tokens >= 1'000'000) return print("%.2fM", count / 1e6);
  return print("%.0fk", count / 1e3);
}

std::string name_of_group(const Plan& plan, const DevicePlan& device) {
  return print("%lld x %s", number(plan.request.num_ranks), device.device.title.data());
}

std::string memory_text(const Plan& plan) {
  const MemoryUse& use = plan.use;
  std::string out = "Memory of one GPU, GiB";
  out += print("; the cache takes %.1f KB a token\n",
               (use.target_kv_per_token + use.drafter_kv_per_token) / 1e3);
  out += print("  %-26s %8s %8s %8s %8s %8s %8s %10s\n", "", "usable", "weights", "drafter",
               "buffers", "runtime", "cache", "KV tokens");
  for (const DevicePlan& device : plan.devices) {
    const MemoryPlan& m = device.memory;
    out += print("  %-26s %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f %10s  %s\n",
                 name_of_group(plan, device).c_str(), m.usable / kGiB, m.target_weights / kGiB,
                 m.drafter_weights / kGiB, m.buffers / kGiB, (m.graphs + m.runtime) / kGiB,
                 m.kv_bytes / kGiB, tokens_text(m.kv_tokens).c_str(),
                 fits_note(plan.request, device).c_str());
  }
  return out;
}

std::string speed_row(const DevicePlan& device, const PlannedPoint& point) {
  const PlannedRound& plain = point.plain();
  const PlannedRound& best = point.best_round();
  const OpTime total = best.time.total();
  std::string out =
      print("  %-24s %5lld %8lld %9.2f %7.0f %7lld %7.2f %9.2f %7.0f %8.0f %6.2fx  %s",
            device.device.title.data(), number(best.batch), number(best.context),
            plain.time.total().us() / 1000, plain.tokens_per_s_user(), number(best.budget),
            best.tokens_per_round, total.us() / 1000, best.tokens_per_s_user(), best.tokens_per_s(),
            best.tokens_per_s() / plain.tokens_per_s(), name_of(total.limit()));
  return out + (point.fits ? "\n" : "; the cache is too small\n");
}

std::string speed_text(const Plan& plan) {
  if (std::ranges::none_of(plan.devices, [](const DevicePlan& d) { return d.memory.fits; }))
    return "\n" + nothing_fits_note(plan) + "\n";
  std::string out = "\nSpeed: plain decoding, then the best tree\n";
  out += print("  %-24s %5s %8s %9s %7s %7s %7s %9s %7s %8s %7s  %s\n", "", "batch", "context",
               "plain ms", "tok/s", "budget", "tokens", "round ms", "tok/s", "total", "gain",
               "limited by");
  for (const DevicePlan& device : plan.devices) {
    if (!device.memory.fits) continue;
    for (const PlannedPoint& point : device.points) out += speed_row(device, point);
  }
  return out +
         "  tok/s: of one stream; total: of all; budget: nodes of a tree besides its root; tokens: "
         "committed a round\n";
}

std::string parts_text(const PlannedRound& round) {
  constexpr double kBarWidth = 40;
  const double total = round.time.total().us();
  std::string out;
  for (std::size_t i = 0; i < kNumParts; ++i) {
    const OpTime& part = round.time.parts[i];
    if (part.us() <= 0) continue;
    const double share = part.us() / total;
    out += print("    %-12s %8.3f ms %5.1f %%  %-40s  %s\n", name_of(static_cast<Part>(i)),
                 part.us() / 1000, 100 * share,
                 std::string(static_cast<std::size_t>(std::lround(share * kBarWidth)), '#').c_str(),
                 name_of(part.limit()));
  }
  return out;
}

std::string round_text(const DevicePlan& device, const PlannedRound& round) {
  const OpTime total = round.time.total();
  std::string out =
      print("\n%s, batch %lld, context %lld, budget %lld: %.2f ms a round, %.2f tokens\n",
            device.device.title.data(), number(round.batch), number(round.context),
            number(round.budget), total.us() / 1000, round.tokens_per_round);
  out += print(
      "    one GPU reads %.2f GB of weights and %.2f GB of cache, computes %.2f TFLOP in %lld "
      "kernels",
      round.totals.weight_bytes / 1e9, round.totals.kv_bytes / 1e9, round.totals.flops / 1e12,
      number(round.totals.launches));
  if (round.distinct_experts > 0) out += print("; %.0f experts a layer", round.distinct_experts);
  out += "\n" + parts_text(round) + "    what would change it:\n";
  for (const Change& change : amdahl_table(round))
    out += print("      %-46s %8.2f ms  %5.2fx\n", change.what.c_str(), change.us / 1000,
                 total.us() / change.us);
  return out;
}

}  // namespace

std::string fits_note(const PlanRequest& request, const DevicePlan& device) {
  const std::string note = device.device.can_run ? "" : "; no build for it: to compare";
  if (device.memory.fits) return "fits" + note;
  if (device.memory.kv_bytes <= 0) return "does not fit" + note;
  const auto smallest = [](const std::vector<std::int64_t>& values) {
    return number(*std::ranges::min_element(values));
  };
  return print("does not fit: the cache holds no %lld x %lld tokens", smallest(request.batches),
               smallest(request.contexts)) +
         note;
}

std::string nothing_fits_note(const Plan& plan) {
  std::string wanted;
  for (const DevicePlan& device : plan.devices) {
    const MemoryPlan& m = device.memory;
    if (m.kv_bytes > 0) continue;  // only the cache is too small
    const double room = m.usable - m.runtime;
    const double weights =
        (m.target_weights + m.drafter_weights) * static_cast<double>(plan.request.num_ranks);
    std::int64_t ranks = plan.request.num_ranks;
    while (static_cast<double>(ranks) * room < weights && ranks < 64) ranks *= 2;
    wanted += print("%s -tp %lld of %s", wanted.empty() ? "" : ",", number(ranks),
                    device.device.title.data());
  }
  return wanted.empty() ? "Nothing fits: fewer sequences (--batch) or shorter ones (--context)."
                        : "Nothing fits. Weights alone need" + wanted + ".";
}

std::string plan_as_text(const Plan& plan) {
  const PlanRequest& request = plan.request;
  std::string out = print("%s on %lld GPU%s\n", request.model.c_str(), number(request.num_ranks),
                          request.num_ranks > 1 ? "s, tensor parallel" : "");
  out += "Kernel times: " + plan.times_source + ". Other GPUs are predicted from these.\n";
  if (request.num_ranks > 1) out += sums_note(plan) + "\n";
  if (request.drafter.empty())
    out += "No drafter: plain decoding (--drafter DIR, or --drafter kimi-k2-dflash).\n";
  else
    out += "Drafter: " + request.drafter + ". Acceptance: " + plan.acceptance.name + " (" +
           plan.acceptance.source + ").\n";
  if (request.target.n_routed_experts > 0)
    out += request.expert_overlap.is_none()
               ? std::string("Routing: rows choose independently (--expert-overlap).\n")
               : print(
                     "Routing: %.2f of the uniform growth past one row does not happen at 8 rows, "
                     "%.2f at 64 (%s).\n",
                     request.expert_overlap.at(8), request.expert_overlap.at(64),
                     request.expert_overlap.source().c_str());
  out += "\n" + memory_text(plan) + speed_text(plan);
  for (const DevicePlan& device : plan.devices)
    if (device.memory.fits)
      for (const PlannedPoint& point : device.points) out += round_text(device, point.best_round());
  return out;
}

}  // namespace coppice
