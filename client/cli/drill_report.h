#pragma once

#include <string>
#include <vector>

#include "client/cli/drill.h"
#include "client/cli/output.h"

// How drills are told: as a table, as JSON and as a page for a browser.

namespace holdfast::cli {

Table DrillTable(const std::vector<DrillReport>& reports);
/// Sentences below the table: what was done, what was missed, what is to be known.
std::string DrillNotes(const std::vector<DrillReport>& reports);
Json DrillJson(const DrillReport& report);
/// A page that needs nothing beside it: the figures, and a timeline of each drill as SVG.
std::string DrillPage(const std::string& job, const DrillObjective& objective,
                      const std::vector<DrillReport>& reports);

}  // namespace holdfast::cli
