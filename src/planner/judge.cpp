#include "planner/judge.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "planner/print.h"

namespace coppice {
namespace {

constexpr std::int64_t kRows[] = {1, 8, 64};
constexpr std::int64_t kContexts[] = {1024, 32768};
constexpr Part kParts[] = {Part::kDraft,   Part::kTreeBuild, Part::kTreeCompile, Part::kAttention,
                           Part::kExperts, Part::kDense,     Part::kLmHead,      Part::kNorms,
                           Part::kSample,  Part::kCommit};

bool is_calibration(const MeasuredRound& round) {
  return std::ranges::find(kRows, round.rows) != std::end(kRows) &&
         std::ranges::find(kContexts, round.context) != std::end(kContexts);
}

double us_of(const MeasuredRound& round, Part part) {
  const auto found = round.us.find(part);
  return found == round.us.end() ? 0 : found->second;
}

std::string percent(double error) {
  return std::isfinite(error) ? print("%+.1f", 100 * error) : std::string("-");
}

// Half of what lies between the slowest and the fastest run, in per cent of the median.
std::string spread_of(double low, double high, double median) {
  return median > 0 && high > 0 ? print("%.1f", 50 * (high - low) / median) : std::string("-");
}

std::string spread_of(const MeasuredRound& round) {
  return spread_of(round.total_us_min, round.total_us_max, round.total_us);
}

std::string spread_of(const MeasuredRound& round, Part part) {
  const auto found = round.spread.find(part);
  return found == round.spread.end()
             ? std::string("-")
             : spread_of(found->second.first, found->second.second, us_of(round, part));
}

}  // namespace

double JudgedRound::error(Part part) const {
  return predicted[part].us() / us_of(measured, part) - 1;
}

Judgement judge(const std::string& path) {
  Judgement result{.file = read_round_file(path)};
  const RoundFile& file = result.file;
  NetworkOnPaper network = network_of(file);
  result.memory = judge_memory(file);
  std::vector<MeasuredRound> known;
  std::map<double, double> overlaps;  // by rows
  for (const MeasuredRound& round : file.rounds) {
    if (!is_calibration(round)) continue;
    known.push_back(round);
    overlaps.emplace(static_cast<double>(round.rows), measured_overlap(round, file.target));
  }
  if (known.empty())
    throw Error(ErrorKind::kBadFile,
                path + ": no round of 1, 8 or 64 rows at a context of 1k or 32k");
  RoundTimes times(KernelTimes::shipped());
  times.calibrate(known, network, file.target, file.device, path);
  for (const MeasuredRound& round : file.rounds) {
    const double over_parts = times.round_over_parts(round.rows);
    const auto time = [&](const Routing& routing) {
      return times.time(count_round(round, network, routing), file.device, 1, 0);
    };
    JudgedRound judged{.measured = round, .is_calibration = is_calibration(round)};
    judged.predicted =
        time({.overlap = interpolate_log(overlaps, static_cast<double>(round.rows)), .loads = {}});
    judged.predicted_total_us = judged.predicted.total().us() * over_parts;
    judged.counted = time(measured_routing(round, file.target, true));
    judged.counted_total_us =
        time(measured_routing(round, file.target, false)).total().us() * over_parts;
    result.rounds.push_back(std::move(judged));
  }
  return result;
}

std::string judgement_as_text(const Judgement& judgement) {
  std::string out = "| L | rows | measured ms | predicted ms | total % | spread % |";
  std::string rule = "|---|---|---|---|---|---|";
  for (const Part part : kParts) {
    out += print(" %s |", name_of(part));
    rule += "---|";
  }
  out += " total, counted | experts, counted |\n" + rule + "---|---|\n";
  for (const JudgedRound& round : judgement.rounds) {
    out += print("| %lld | %lld%s | %.3f | %.3f | %s | %s |",
                 static_cast<long long>(round.measured.context),
                 static_cast<long long>(round.measured.rows), round.is_calibration ? " c" : "",
                 round.measured.total_us / 1000, round.predicted_total_us / 1000,
                 percent(round.total_error()).c_str(), spread_of(round.measured).c_str());
    for (const Part part : kParts)
      out += " " + (us_of(round.measured, part) > 0 ? percent(round.error(part)) : "-") + " |";
    out += print(
        " %s | %s |\n", percent(round.counted_total_error()).c_str(),
        percent(round.counted[Part::kExperts].us() / us_of(round.measured, Part::kExperts) - 1)
            .c_str());
  }
  return out;
}

std::string spread_as_text(const Judgement& judgement) {
  std::string out = "| L | rows |", rule = "|---|---|";
  for (const Part part : kParts) {
    out += print(" %s us | +- %% |", name_of(part));
    rule += "---|---|";
  }
  out += "\n" + rule + "\n";
  for (const JudgedRound& round : judgement.rounds) {
    out += print("| %lld | %lld |", static_cast<long long>(round.measured.context),
                 static_cast<long long>(round.measured.rows));
    for (const Part part : kParts)
      out += print(" %.1f | %s |", us_of(round.measured, part),
                   spread_of(round.measured, part).c_str());
    out += "\n";
  }
  return out;
}

}  // namespace coppice
