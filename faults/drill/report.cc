#include "faults/drill/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/config.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"

namespace holdfast::faults {
using cli::FormatSeconds;
using cli::Join;
using cli::Printable;
using cli::Table;
using cli::Tone;
namespace {
constexpr int kPicWidth = 900;
constexpr int kPicLeft = 20;
constexpr int kPicRight = 40;

const char* NameOf(BytesVerdict bytes) {
  return bytes == BytesVerdict::kEqual ? "equal" : bytes == BytesVerdict::kDiffer ? "DIFFER" : "-";
}

std::string NumberText(std::optional<int64_t> number) {
  return number ? std::to_string(*number) : "-";
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : Printable(text)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// Returns the events of a recovery with their times, in the usual order.
std::vector<std::pair<const char*, int64_t>> MomentsOf(const DrillReport& report) {
  std::vector<std::pair<const char*, int64_t>> moments = {{"injected", 0}};
  const auto add = [&moments](const char* name, std::optional<int64_t> ms) {
    if (ms) moments.emplace_back(name, *ms);
  };
  add("detected", report.detect_ms);
  add("decided", report.decide_ms);
  add("stopped", report.stop_ms);
  add("restored", report.restore_ms);
  add("first step", report.recover_ms);
  return moments;
}

/// Draws a timeline with a mark for each event. Labels alternate above and below the line, so that
/// labels of close events do not overlap.
std::string Timeline(const DrillReport& report) {
  auto moments = MomentsOf(report);
  std::stable_sort(moments.begin(), moments.end(),
                   [](const auto& a, const auto& b) { return a.second < b.second; });
  const int64_t last = std::max<int64_t>(moments.back().second, 1);
  const auto x = [last](int64_t ms) {
    const int64_t width = kPicWidth - kPicLeft - kPicRight - 60;
    return kPicLeft + static_cast<int>(ms * width / last);
  };
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {0} 130\" width=\"{0}\" height=\"130\" role=\"img\" "
      "aria-label=\"timeline\"><line x1=\"{1}\" y1=\"65\" x2=\"{2}\" y2=\"65\" class=\"axis\"/>",
      kPicWidth, kPicLeft, x(last));
  if (report.detect_ms) {
    svg += fmt::format("<line x1=\"{}\" y1=\"65\" x2=\"{}\" y2=\"65\" class=\"unseen\"/>", x(0),
                       x(*report.detect_ms));
  }
  const int heights[] = {50, 88, 30, 108, 12, 126};
  std::string texts;  // drawn last, on top of the lines
  for (size_t i = 0; i < moments.size(); ++i) {
    const int at = x(moments[i].second);
    const int y = heights[i % std::size(heights)];
    svg += fmt::format(
        "<line x1=\"{0}\" y1=\"65\" x2=\"{0}\" y2=\"{1}\" class=\"tick\"/>"
        "<circle cx=\"{0}\" cy=\"65\" r=\"4\"/>",
        at, y);
    texts += fmt::format("<text x=\"{}\" y=\"{}\">{} {}</text>", at + 4, y, moments[i].first,
                         FormatSeconds(moments[i].second));
  }
  return svg + texts + "</svg>";
}

constexpr const char* kStyle =
    "body{font:15px system-ui,sans-serif;margin:2em;color:#222;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:.3em .8em;text-align:left;"
    "border-bottom:1px solid #ccc}td.n{text-align:right}"
    "section{margin:2em 0}.bad{color:#a40000;font-weight:600}.good{color:#116611}"
    "svg text{font:12px "
    "system-ui,sans-serif;paint-order:stroke;stroke:#fff;stroke-width:4px}.axis{stroke:#447;stroke-"
    "width:3}"
    ".unseen{stroke:#c40;stroke-width:3}.tick{stroke:#999}circle{fill:#447}";

std::string Section(size_t number, const DrillReport& report) {
  std::string html =
      fmt::format("<section><h2>{}. {}: {}</h2><p>{} UTC, seed {}: {}</p>{}", number,
                  TraitsOf(report.kind).name, Escaped(report.target), FormatUtc(report.wall_nanos),
                  report.seed, Escaped(report.what), Timeline(report));
  for (const std::string& missed : report.missed) {
    html += fmt::format("<p class=\"bad\">missed: {}</p>", Escaped(missed));
  }
  for (const std::string& note : report.notes) html += fmt::format("<p>{}</p>", Escaped(note));
  return html + "</section>\n";
}
}  // namespace

Table DrillTable(const std::vector<DrillReport>& reports) {
  Table table({{"DRILL", false, false},
               {"TARGET", false, true},
               {"DETECTED", true, false},
               {"RECOVERED", true, false},
               {"LOST", true, false},
               {"BYTES", false, false},
               {"INCIDENT", true, false},
               {"RESULT", false, false}});
  for (const DrillReport& report : reports) {
    const bool passed = report.missed.empty();
    table.Add(
        {{TraitsOf(report.kind).name},
         {report.target},
         {FormatSeconds(report.detect_ms)},
         {FormatSeconds(report.recover_ms)},
         {NumberText(report.lost_steps)},
         {NameOf(report.bytes), report.bytes == BytesVerdict::kDiffer ? Tone::kBad : Tone::kPlain},
         {report.incident ? std::to_string(*report.incident) : "-"},
         {passed ? "passed" : "MISSED", passed ? Tone::kGood : Tone::kBad}});
  }
  return table;
}

std::string DrillNotes(const std::vector<DrillReport>& reports) {
  std::string text;
  for (size_t i = 0; i < reports.size(); ++i) {
    const DrillReport& report = reports[i];
    text += fmt::format("{}. {}\n", i + 1, Printable(report.what));
    if (report.incident) {
      text += fmt::format("   incident {}: {}; blamed: rank {}; node {}\n", *report.incident,
                          Printable(report.incident_kind), fmt::join(report.blamed_ranks, ", "),
                          Printable(Join(report.blamed_nodes, ", ")));
    }
    for (const std::string& missed : report.missed) text += "   MISSED " + missed + "\n";
    for (const std::string& note : report.notes) text += "   " + Printable(note) + "\n";
  }
  return text;
}

Json DrillJson(const DrillReport& report) {
  Json bytes = report.bytes == BytesVerdict::kUnknown ? Json(nullptr)
                                                      : Json(report.bytes == BytesVerdict::kEqual);
  Json survived = Json::array();
  for (const VersionId version : report.survived) survived.push_back(VersionJson(version));
  return {{"drill", TraitsOf(report.kind).name},
          {"target", report.target},
          {"seed", report.seed},
          {"time", TimeJson(report.wall_nanos)},
          {"what", report.what},
          {"detect_ms", NumberOrNull(report.detect_ms)},
          {"decide_ms", NumberOrNull(report.decide_ms)},
          {"stop_ms", NumberOrNull(report.stop_ms)},
          {"restore_ms", NumberOrNull(report.restore_ms)},
          {"recover_ms", NumberOrNull(report.recover_ms)},
          {"lost_steps", NumberOrNull(report.lost_steps)},
          {"incident", report.incident ? Json(*report.incident) : Json(nullptr)},
          {"incident_kind", report.incident ? Json(report.incident_kind) : Json(nullptr)},
          {"blamed_ranks", report.blamed_ranks},
          {"blamed_nodes", report.blamed_nodes},
          {"restored", VersionJson(report.restored)},
          {"bytes_equal", bytes},
          {"survived", survived},
          {"notes", report.notes},
          {"missed", report.missed},
          {"passed", report.missed.empty()}};
}

std::string DrillPage(const std::string& job, const DrillObjective& objective,
                      const std::vector<DrillReport>& reports) {
  const auto passed = static_cast<size_t>(std::count_if(
      reports.begin(), reports.end(), [](const auto& report) { return report.missed.empty(); }));
  std::string wanted;
  if (objective.detect_ms) wanted += " detect " + FormatSeconds(*objective.detect_ms);
  if (objective.recover_ms) wanted += " recover " + FormatSeconds(*objective.recover_ms);
  if (objective.lost_steps) wanted += fmt::format(" lost steps {}", *objective.lost_steps);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Holdfast drills: "
      "{0}</title><style>{1}</style></head><body>\n<h1>Drills on job {0}</h1><p>{2} of {3} passed. "
      "Objective:{4}.</p>\n<table><tr><th>Drill</th><th>Target</th><th>Detected</th>"
      "<th>Recovered</th><th>Lost steps</th><th>Bytes</th><th>Result</th></tr>\n",
      Escaped(job), kStyle, passed, reports.size(), wanted.empty() ? " to recover" : wanted);
  for (const DrillReport& report : reports) {
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td><td>{}</td><td class=\"{}\">{}</td></tr>\n",
        TraitsOf(report.kind).name, Escaped(report.target), FormatSeconds(report.detect_ms),
        FormatSeconds(report.recover_ms), NumberText(report.lost_steps), NameOf(report.bytes),
        report.missed.empty() ? "good" : "bad", report.missed.empty() ? "passed" : "missed");
  }
  html += "</table>\n";
  for (size_t i = 0; i < reports.size(); ++i) html += Section(i + 1, reports[i]);
  return html + "</body></html>\n";
}

}  // namespace holdfast::faults
