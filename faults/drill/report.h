#pragma once

#include <string>
#include <vector>

#include "cli/core/output.h"
#include "faults/drill/drill.h"

// The output of drills: a table, JSON and an HTML page.

namespace holdfast::faults {

cli::Table DrillTable(const std::vector<DrillReport>& reports);
/// Returns the text below the table: the faults, missed objectives and notes.
std::string DrillNotes(const std::vector<DrillReport>& reports);
Json DrillJson(const DrillReport& report);
/// Returns a self-contained HTML page: the figures, and a timeline of each drill as SVG.
std::string DrillPage(const std::string& job, const DrillObjective& objective,
                      const std::vector<DrillReport>& reports);

}  // namespace holdfast::faults
