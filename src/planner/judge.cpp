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

}  // namespace

double JudgedRound::error(Part part) const {
  return predicted[part].us() / us_of(measured, part) - 1;
}

Judgement judge(const std::string& path) {
  Judgement result{.file = read_round_file(path)};
  const RoundFile& file = result.file;
  NetworkOnPaper network = network_of(file);
  result.predicted_weights = network.memory().target_weights;
  result.predicted_drafter = network.memory().drafter_weights;
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
    const double overlap = interpolate_log(overlaps, static_cast<double>(round.rows));
    JudgedRound judged{.measured = round, .is_calibration = is_calibration(round)};
    judged.predicted = times.time(count_round(round, network, overlap), file.device, 1, 0);
    judged.predicted_total_us = judged.predicted.total().us() * times.round_over_parts(round.rows);
    result.rounds.push_back(std::move(judged));
  }
  return result;
}

std::string judgement_as_text(const Judgement& judgement) {
  std::string out = "| L | rows | measured ms | predicted ms | total % |";
  std::string rule = "|---|---|---|---|---|";
  for (const Part part : kParts) {
    out += print(" %s |", name_of(part));
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (const JudgedRound& round : judgement.rounds) {
    out += print("| %lld | %lld%s | %.3f | %.3f | %s |",
                 static_cast<long long>(round.measured.context),
                 static_cast<long long>(round.measured.rows), round.is_calibration ? " c" : "",
                 round.measured.total_us / 1000, round.predicted_total_us / 1000,
                 percent(round.total_error()).c_str());
    for (const Part part : kParts)
      out += " " + (us_of(round.measured, part) > 0 ? percent(round.error(part)) : "-") + " |";
    out += "\n";
  }
  return out +
         print("\nWeights: predicted %.2f GB, allocated %.2f GB (%+.1f %%)",
               judgement.predicted_weights / 1e9, judgement.file.weights_bytes / 1e9,
               100 * (judgement.predicted_weights / judgement.file.weights_bytes - 1)) +
         (judgement.file.drafter_bytes > 0
              ? print("; drafter %.2f, %.2f GB (%+.1f %%)\n", judgement.predicted_drafter / 1e9,
                      judgement.file.drafter_bytes / 1e9,
                      100 * (judgement.predicted_drafter / judgement.file.drafter_bytes - 1))
              : std::string("\n"));
}

}  // namespace coppice
