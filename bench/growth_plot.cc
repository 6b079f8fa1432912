#include "bench/growth_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

namespace holdfast::bench {
namespace {

constexpr int kPanelWidth = 280;
constexpr int kPanelHeight = 160;
constexpr int kLeft = 50;
constexpr int kTop = 50;
constexpr int kStep = kPanelWidth + 70;
constexpr const char* kBegin = "<!-- growth -->\n";
constexpr const char* kEnd = "<!-- end of growth -->";

/// One quantity over the number of nodes, with one line for each number of parities.
struct Panel {
  std::string title;
  double (*value)(const GrowthPoint&);
  int x = 0;  // of its left edge
};

struct Scale {
  int nodes_max = 1;
  double value_max = 1;
  int X(const Panel& panel, int nodes) const { return panel.x + nodes * kPanelWidth / nodes_max; }
  int Y(double value) const {
    return kTop + kPanelHeight - static_cast<int>(value / value_max * kPanelHeight);
  }
};

const char* ColorOf(int parity) { return parity == 1 ? "#1769aa" : "#b23c17"; }

std::string Text(int x, int y, const std::string& anchor, const std::string& text) {
  return fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

std::string Draw(const Panel& panel, const std::vector<GrowthPoint>& points) {
  Scale scale;
  std::map<int, std::string> lines;  // by parity
  scale.value_max = 0;
  for (const GrowthPoint& point : points) {
    scale.nodes_max = std::max(scale.nodes_max, point.nodes);
    scale.value_max = std::max(scale.value_max, panel.value(point));
  }
  scale.value_max = std::max(scale.value_max * 1.25, 1e-9);
  const int bottom = kTop + kPanelHeight;
  std::string svg = Text(panel.x, kTop - 12, "start", panel.title);
  svg += fmt::format("<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"#444\"/>\n", panel.x,
                     kTop, bottom, panel.x + kPanelWidth);
  for (double part : {0.0, 0.5, 1.0}) {
    const double value = scale.value_max * part;
    svg += Text(panel.x - 6, scale.Y(value) + 4, "end",
                value < 100 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value));
  }
  std::map<int, bool> labelled;
  for (const GrowthPoint& point : points) {
    const int x = scale.X(panel, point.nodes);
    const int y = scale.Y(panel.value(point));
    std::string& line = lines[point.parity];
    line += fmt::format("{}{} {}", line.empty() ? "M" : "L", x, y);
    svg += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"{}\"/>\n", x, y,
                       ColorOf(point.parity));
    if (!std::exchange(labelled[point.nodes], true)) {
      svg += Text(x, bottom + 16, "middle", std::to_string(point.nodes));
    }
  }
  for (const auto& [parity, line] : lines) {
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", line,
                       ColorOf(parity));
  }
  return svg + Text(panel.x + kPanelWidth / 2, bottom + 34, "middle", "nodes of the group");
}

}  // namespace

std::string GrowthTable(const std::vector<GrowthPoint>& points) {
  std::string table =
      "| n | m | sealed → `peer` | only sending | ratio | sent per node | agent's CPU per node |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const GrowthPoint& point : points) {
    table += fmt::format("| {} | {} | {:.0f} ms | {:.0f} ms | {:.2f} | {:.1f} MB | {:.0f} ms |\n",
                         point.nodes, point.parity, point.ms, point.alone_ms,
                         point.ms / point.alone_ms, point.sent_mb, point.cpu_ms);
  }
  return table;
}

std::string GrowthSvg(const std::vector<GrowthPoint>& points, const std::string& title) {
  const Panel panels[] = {
      {"sealed → committed at peer, ms", [](const GrowthPoint& p) { return p.ms; }, kLeft},
      {"sent by a node, MB", [](const GrowthPoint& p) { return p.sent_mb; }, kLeft + kStep},
      {"CPU of a node's agent, ms", [](const GrowthPoint& p) { return p.cpu_ms; },
       kLeft + 2 * kStep}};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      kLeft + 3 * kStep, kTop + kPanelHeight + 50);
  svg += Text(kLeft, 18, "start", title);
  for (const Panel& panel : panels) svg += Draw(panel, points);
  int x = kLeft + 2 * kStep + kPanelWidth;
  for (int parity : {2, 1}) {
    svg += fmt::format("<g fill=\"{}\">{}</g>\n", ColorOf(parity),
                       Text(x, 18, "end", fmt::format("m = {}", parity)));
    x -= 60;
  }
  return svg + "</svg>\n";
}

Status WriteGrowth(const std::string& path, const std::vector<GrowthPoint>& points,
                   const std::string& title) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t begin = text.find(kBegin);
  const size_t end = text.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return NotFoundError(path + " lacks the lines <!-- growth --> and <!-- end of growth -->");
  }
  const size_t from = begin + std::string(kBegin).size();
  text.replace(from, end - from, GrowthTable(points));
  const auto plot = std::filesystem::path(path).parent_path() / "growth.svg";
  if (!(std::ofstream(path) << text) || !(std::ofstream(plot) << GrowthSvg(points, title))) {
    return IoErrorError("cannot write " + path + " or " + plot.string());
  }
  return Status::Ok();
}

}  // namespace holdfast::bench
