#include "benchmark/timing.h"

#include <algorithm>
#include <ctime>

namespace coppice {
namespace {

constexpr std::int32_t kGraphKind = 9001;
constexpr double kReplayUs = 3000;  // of one replay, about
constexpr std::int64_t kMaxCalls = 200;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  COPPICE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

Spread time_calls(Backend& backend, DeviceMeter& meter, std::int64_t calls, int replays,
                  const std::function<void(std::int64_t)>& body) {
  const auto replay = [&] {
    backend.run_graph({.kind = kGraphKind}, [&] {
      for (std::int64_t i = 0; i < calls; ++i) body(i);
    });
  };
  backend.forget_graphs();
  replay();  // eager; captures
  replay();
  std::vector<double> us;
  for (int i = 0; i < replays; ++i) {
    meter.stamp(0);
    replay();
    meter.stamp(1);
    us.push_back(meter.microseconds(0, 1) / static_cast<double>(calls));
  }
  backend.forget_graphs();
  return spread_of(std::move(us));
}

std::int64_t calls_for(double estimated_us, std::int64_t num_copies) {
  const auto wanted = static_cast<std::int64_t>(kReplayUs / std::max(estimated_us, 1.0)) + 1;
  return std::clamp(wanted, std::max<std::int64_t>(num_copies, 4), std::max(num_copies, kMaxCalls));
}

DeviceCeiling measure_ceiling(Backend& backend, DeviceMeter& meter) {
  constexpr std::int64_t kMiB = 1 << 20;
  const bool is_cpu = backend.device() == Device::kCpu;
  const std::int64_t most = is_cpu ? 256 * kMiB : 8192 * kMiB;
  const std::int64_t bytes =
      std::clamp(meter.facts().free_bytes / 4 / kMiB * kMiB, 64 * kMiB, most);
  const Buffer buffer = backend.allocate(static_cast<std::size_t>(bytes));
  const Tensor all = buffer.tensor(DType::kU8, {bytes});
  meter.fill(buffer.tensor(DType::kF32, {bytes / 4}), 1, 1);  // zeros could be cheaper
  DeviceCeiling ceiling;
  const Spread whole = time_calls(backend, meter, 1, 9, [&](std::int64_t) { meter.read(all); });
  ceiling.read_gb_per_s = static_cast<double>(bytes) / whole.median * 1e-3;
  std::vector<double> fixed;
  for (std::int64_t mib = 1; mib <= 64 && !is_cpu; mib *= 2) {
    const std::int64_t size = mib * kMiB, places = bytes / size;
    const std::int64_t calls = std::min<std::int64_t>(places, 40);
    // Far apart, so that no call finds the bytes of an earlier replay in the cache.
    const Spread spread = time_calls(backend, meter, calls, 9, [&](std::int64_t i) {
      meter.read(all.rows(i * (places / calls) * size, size));
    });
    fixed.push_back(spread.median - static_cast<double>(size) / ceiling.read_gb_per_s * 1e-3);
  }
  if (!fixed.empty()) ceiling.fixed_us = spread_of(fixed).median;
  if (!is_cpu)
    ceiling.node_us =
        time_calls(backend, meter, 200, 9, [&](std::int64_t) { meter.empty_step(); }).median;
  return ceiling;
}

Json describe_run(const Backend& backend, const DeviceMeter& meter, const DeviceCeiling& ceiling,
                  const std::string& schema, const std::string& command) {
  const DeviceFacts facts = meter.facts();
  return Json::object({{"schema", schema},
                       {"command", command},
                       {"date", utc_now()},
                       {"device", Json::object({{"name", facts.name},
                                                {"backend", backend.name()},
                                                {"num_sms", facts.num_units},
                                                {"l2_bytes", facts.cache_bytes},
                                                {"memory_bytes", facts.memory_bytes}})},
                       {"read_gb_per_s", ceiling.read_gb_per_s},
                       {"fixed_us", ceiling.fixed_us},
                       {"node_us", ceiling.node_us}});
}

}  // namespace coppice
