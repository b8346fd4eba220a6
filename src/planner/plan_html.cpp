// The plan as one page.
#include <filesystem>

#include "planner/plan.h"
#include "planner/print.h"
#include "planner/svg_plot.h"

namespace coppice {
namespace {

constexpr double kGiB = 1073741824.0;

constexpr const char* kStyle = R"(
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:#1c1c1c;background:#fafaf8;
  max-width:1020px;margin:2.2rem auto;padding:0 1.2rem}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.12rem;margin:2.2rem 0 .5rem}
p{margin:.4rem 0}p.lead{color:#555}
figure{margin:1rem 0 1.6rem;background:#fff;border:1px solid #e3e3de;border-radius:8px;padding:14px}
figcaption{color:#444;font-size:.88rem;margin-top:.5rem}
figcaption b.kind{display:inline-block;border-radius:3px;padding:0 .45em;margin-right:.35em;color:#fff}
b.predicted{background:#8a6fbf}b.measured{background:#2f7d5b}
svg{width:100%;height:auto;display:block}
svg text{font-family:inherit}.tick{font-size:11.5px;fill:#444}.label{font-size:12.5px;fill:#222}
.name{font-size:12px;font-weight:600}.grid{stroke:#e6e6e1;stroke-width:1}.axis{stroke:#888;stroke-width:1}
table{border-collapse:collapse;font-size:.82rem;width:100%;background:#fff}
th,td{padding:.28rem .42rem;text-align:right;border-bottom:1px solid #e8e8e3;white-space:nowrap}
th{background:#f1f1ec;font-weight:600}th:first-child,td:first-child{text-align:left}
td.good{color:#1f6f4d;font-weight:600}td.bad{color:#b23a1a;font-weight:600}
div.scroll{overflow-x:auto}
)";

// The last part of a path: a report goes to other people.
std::string title_of(const std::string& model) {
  const std::filesystem::path path(model);
  const std::filesystem::path named = path.filename() == "config.json" ? path.parent_path() : path;
  return named.has_filename() ? named.filename().string() : named.parent_path().filename().string();
}

long long number(std::int64_t value) {
  return static_cast<long long>(value);
}

// What a figure rests on, said below it.
std::string figure(const std::string& svg, const std::string& what, const Plan& plan,
                   bool h200_only = false) {
  return "<figure>\n" + svg + "<figcaption><b class='kind predicted'>predicted</b>" +
         escape_html(what) + " <b class='kind measured'>measured</b>" +
         escape_html("the kernel times that all of it rests on (" + plan.times_source + ")" +
                     (h200_only ? "." : "; no other GPU of the figure was measured.")) +
         "</figcaption>\n</figure>\n";
}

std::string cell(const std::string& text, const char* kind = "") {
  return std::string("<td") + (*kind != '\0' ? std::string(" class='") + kind + "'" : "") + ">" +
         escape_html(text) + "</td>";
}

std::string memory_table(const Plan& plan) {
  std::string out =
      "<div class='scroll'><table><tr><th>GPU</th><th>usable GiB</th><th>weights</th>"
      "<th>drafter</th><th>buffers</th><th>runtime</th><th>left for cache</th><th>KV tokens</th>"
      "<th></th></tr>\n";
  for (const DevicePlan& device : plan.devices) {
    const MemoryPlan& m = device.memory;
    out += "<tr>" +
           cell(print("%lld x %s", number(plan.request.num_ranks), device.device.title.data()));
    for (const double bytes : {m.usable, m.target_weights, m.drafter_weights, m.buffers,
                               m.graphs + m.runtime, m.kv_bytes})
      out += cell(print("%.1f", bytes / kGiB));
    out += cell(print("%lld", number(m.kv_tokens))) +
           cell(fits_note(plan.request, device), m.fits ? "good" : "bad") + "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string speed_table(const Plan& plan) {
  std::string out =
      "<div class='scroll'><table><tr><th>GPU</th><th>batch</th><th>context</th><th>plain ms</th>"
      "<th>tok/s</th><th>best budget</th><th>tokens a round</th><th>round ms</th><th>tok/s</th>"
      "<th>total tok/s</th><th>gain</th><th>limited by</th></tr>\n";
  for (const DevicePlan& device : plan.devices) {
    if (!device.memory.fits) continue;
    for (const PlannedPoint& point : device.points) {
      const PlannedRound& plain = point.plain();
      const PlannedRound& best = point.best_round();
      const OpTime total = best.time.total();
      out += "<tr>" + cell(std::string(device.device.title)) +
             cell(print("%lld", number(best.batch))) + cell(print("%lld", number(best.context))) +
             cell(print("%.2f", plain.time.total().us() / 1000)) +
             cell(print("%.0f", plain.tokens_per_s_user())) +
             cell(print("%lld", number(best.budget))) + cell(print("%.2f", best.tokens_per_round)) +
             cell(print("%.2f", total.us() / 1000)) +
             cell(print("%.0f", best.tokens_per_s_user())) +
             cell(print("%.0f", best.tokens_per_s())) +
             cell(print("%.2fx", best.tokens_per_s() / plain.tokens_per_s())) +
             cell(std::string(name_of(total.limit())) + (point.fits ? "" : "; cache too small")) +
             "</tr>\n";
    }
  }
  return out + "</table></div>\n";
}

const DevicePlan* first_that_fits(const Plan& plan) {
  for (const DevicePlan& device : plan.devices)
    if (device.memory.fits) return &device;
  return nullptr;
}

std::string parts_figure(const Plan& plan) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kNumParts; ++i) names.emplace_back(name_of(static_cast<Part>(i)));
  std::vector<Bar> bars;
  for (const DevicePlan& device : plan.devices) {
    constexpr std::size_t kMost = 24;
    if (!device.memory.fits || bars.size() >= kMost) continue;
    for (const PlannedPoint& point : device.points)
      for (const PlannedRound* round : {&point.plain(), &point.best_round()}) {
        if (round == &point.best_round() && point.best == 0) continue;
        const std::string tree = round->budget == 0 ? std::string("plain")
                                                    : print("tree of %lld", number(round->budget));
        const double total = round->time.total().us();
        Bar bar{.name = print("%s, batch %lld, %s", device.device.name.data(), number(round->batch),
                              tree.c_str()),
                .note = print("%.1f ms, %.0f tok/s", total / 1000, round->tokens_per_s_user())};
        for (const OpTime& part : round->time.parts) bar.parts.push_back(100 * part.us() / total);
        bars.push_back(std::move(bar));
      }
  }
  return figure(stacked_bars("share of a round, %", names, bars),
                print("Where a round's time goes, context %lld; speeds are of one stream.",
                      number(plan.request.contexts.front())),
                plan);
}

// The best round's time on a GPU whose memory alone gets faster.
std::string bandwidth_figure(const Plan& plan, const DevicePlan& device) {
  const PlannedRound& round = device.points.front().best_round();
  const OpTime total = round.time.total();
  const double host = round.time[Part::kHost].us();
  std::vector<Series> areas = {{.name = "host"},
                               {.name = "fixed: launches"},
                               {.name = "links"},
                               {.name = "arithmetic"},
                               {.name = "memory"}};
  for (double factor = 0.5; factor <= 5.01; factor += 0.25) {
    const double tb_s = device.device.read_tb_s * factor;
    const double parts[] = {host, total.fixed_us - host, total.link_us, total.math_us,
                            total.memory_us / factor};
    for (std::size_t i = 0; i < areas.size(); ++i)
      areas[i].points.emplace_back(tb_s, parts[i] / 1000);
  }
  const Axes axes{.x_label = "read rate of one GPU, TB/s", .y_label = "ms of a round"};
  return figure(stacked_areas(axes, areas),
                print("The same round (%s, batch %lld, budget %lld) with nothing but the memory "
                      "changed: what stays is why twice the bandwidth is not twice the speed. It "
                      "reads %.2f TB/s today.",
                      device.device.title.data(), number(round.batch), number(round.budget),
                      device.device.read_tb_s),
                plan, true);
}

std::string budget_figure(const Plan& plan) {
  std::vector<Series> lines;
  for (const DevicePlan& device : plan.devices) {
    if (!device.memory.fits) continue;
    for (const PlannedPoint& point : device.points) {
      if (point.rounds.size() < 3 || point.best_round().context != plan.request.contexts.front())
        continue;
      Series line{.name = print("%s, batch %lld", device.device.name.data(),
                                number(point.best_round().batch)),
                  .highlight = static_cast<int>(point.best)};
      const double plain = point.plain().tokens_per_s();
      for (const PlannedRound& round : point.rounds)
        line.points.emplace_back(static_cast<double>(round.budget + 1),
                                 round.tokens_per_s() / plain);
      lines.push_back(std::move(line));
    }
    constexpr std::size_t kMost = 10;
    if (lines.size() >= kMost) break;
  }
  if (lines.empty()) return "";
  const Axes axes{.x_label = "rows a sequence: nodes of the tree and its root",
                  .y_label = "speed over plain decoding",
                  .log_x = true,
                  .x_ticks = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}};
  return figure(line_plot(axes, lines),
                "What a larger tree buys. The ring is the best budget. Acceptance: " +
                    plan.acceptance.name + " (" + plan.acceptance.source + ").",
                plan);
}

// Tokens a second against batch, or against each other.
std::string batch_figure(const Plan& plan, bool pareto) {
  std::vector<Series> lines;
  int color = 0;
  for (const DevicePlan& device : plan.devices) {
    if (!device.memory.fits) continue;
    for (const bool plain : {false, true}) {
      Series line{.name = std::string(device.device.name) + (plain ? " plain" : " best tree"),
                  .dashed = plain,
                  .color = color};
      if (plan.request.drafter.empty() && !plain) continue;
      for (const PlannedPoint& point : device.points) {
        const PlannedRound& round = plain ? point.plain() : point.best_round();
        if (round.context != plan.request.contexts.front()) continue;
        const double per_gpu = round.tokens_per_s() / static_cast<double>(plan.request.num_ranks);
        if (pareto)
          line.points.emplace_back(round.tokens_per_s_user(), per_gpu);
        else
          line.points.emplace_back(static_cast<double>(round.batch), round.tokens_per_s());
      }
      lines.push_back(std::move(line));
    }
    ++color;
  }
  if (lines.empty() || lines[0].points.size() < 2) return "";
  Axes axes;
  if (pareto)
    axes = {.x_label = "tokens a second of one stream", .y_label = "tokens a second of one GPU"};
  else
    axes = {.x_label = "sequences at once",
            .y_label = "tokens a second, all streams",
            .log_x = true,
            .log_y = true};
  return figure(line_plot(axes, lines),
                pareto
                    ? "What a stream gets against what a GPU gives: up and to the right is better."
                    : "Total speed against batch, plain and with the best tree of each batch.",
                plan);
}

std::string amdahl_html(const DevicePlan& device) {
  const PlannedRound& round = device.points.front().best_round();
  const double now = round.time.total().us();
  std::string out = "<table><tr><th>change</th><th>ms a round</th><th>times as fast</th></tr>\n";
  out += "<tr>" + cell("as it is") + cell(print("%.2f", now / 1000)) + cell("1.00") + "</tr>\n";
  for (const Change& change : amdahl_table(round))
    out += "<tr>" + cell(change.what) + cell(print("%.2f", change.us / 1000)) +
           cell(print("%.2f", now / change.us)) + "</tr>\n";
  return out + "</table>\n";
}

std::string device_table(const Plan& plan) {
  std::string out =
      "<div class='scroll'><table><tr><th>GPU</th><th>memory GiB</th><th>TB/s data sheet</th>"
      "<th>TB/s assumed or measured</th><th>bf16 TFLOP/s</th><th>link "
      "GB/s</th><th>source</th></tr>\n";
  for (const DevicePlan& plan_of : plan.devices) {
    const DeviceSpec& d = plan_of.device;
    out += "<tr>" + cell(std::string(d.title)) + cell(print("%.1f", d.memory_gib)) +
           cell(print("%.2f", d.bandwidth_tb_s)) +
           cell(print("%.2f %s", d.read_tb_s, d.read_is_measured ? "measured" : "assumed")) +
           cell(print("%.0f of %.0f", d.bf16_reached, d.bf16_tflops)) +
           cell(print("%.0f %s", d.link_gb_s, name_of(d.link))) + cell(std::string(d.source)) +
           "</tr>\n";
  }
  return out + "</table></div>\n";
}

// Without figures: nothing.
std::string section(const std::string& title, const std::string& figures) {
  return figures.empty() ? "" : "<h2>" + title + "</h2>\n" + figures;
}

}  // namespace

std::string plan_as_html(const Plan& plan) {
  const PlanRequest& request = plan.request;
  const std::string title = print("%s on %lld GPU%s", title_of(request.model).c_str(),
                                  number(request.num_ranks), request.num_ranks > 1 ? "s" : "");
  std::string out =
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>" + escape_html(title) +
      "</title><style>" + kStyle + "</style></head><body>\n<h1>" + escape_html(title) +
      "</h1>\n<p class='lead'>" +
      escape_html("coppice plan. Kernel times: " + plan.times_source + ". Drafter: " +
                  (request.drafter.empty() ? "none" : request.drafter) + ". " + sums_note(plan)) +
      "</p>\n<h2>Does it fit</h2>\n" + memory_table(plan);
  if (const DevicePlan* const device = first_that_fits(plan)) {
    out += "<h2>How fast</h2>\n" + speed_table(plan) + "<h2>Where the time goes</h2>\n" +
           parts_figure(plan) + bandwidth_figure(plan, *device) +
           "<h2>What would change it</h2>\n<p>" +
           escape_html(print("%s, batch %lld, the best round.", device->device.title.data(),
                             number(device->points.front().best_round().batch))) +
           "</p>\n" + amdahl_html(*device) + section("How large a tree", budget_figure(plan)) +
           section("How many at once", batch_figure(plan, false) + batch_figure(plan, true));
  } else {
    out += "<p>" + escape_html(nothing_fits_note(plan)) + "</p>\n";
  }
  return out + "<h2>GPUs</h2>\n" + device_table(plan) + "</body></html>\n";
}

}  // namespace coppice
