#include "cli/core/options.h"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "cli/core/program.h"

namespace holdfast::cli {

namespace {
std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}
}  // namespace

Environment ReadEnvironment() {
  Environment environment;
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  environment.no_colour = no_colour != nullptr && *no_colour != '\0';
  environment.dumb_terminal = term != nullptr && std::string_view(term) == "dumb";
  environment.home = Variable("HOME");
  return environment;
}

std::string DefaultConfigFile() {
  const std::string own = ReadEnvironment().home + "/.config/holdfast/cli.toml";
  return ::access(own.c_str(), R_OK) == 0 ? own : "/etc/holdfast/cli.toml";
}

Caller ReadCaller() { return {Variable("PATH"), Variable("VIRTUAL_ENV")}; }

namespace {
/// Parses the number at the beginning of `text`. `rest` gets the remaining text.
bool ParseNumber(std::string_view text, double* number, std::string_view* rest) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc() || !std::isfinite(*number)) return false;
  *rest = text.substr(static_cast<size_t>(end - text.data()));
  return true;
}
}  // namespace

Result<int64_t> ParseDurationMs(const std::string& text) {
  double number = 0;
  std::string_view unit;
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1e3}, {"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}};
  if (ParseNumber(text, &number, &unit)) {
    for (auto [name, factor] : kUnits) {
      double ms = number * factor;
      if (unit == name && ms >= 1 && ms <= 1e12) return static_cast<int64_t>(ms);
    }
  }
  return Fail(InvalidArgumentError("'" + text.substr(0, 64) +
                                   "' is not a duration: write 500ms, 10s, 2m or 1h"));
}

Result<double> ParseShare(const std::string& text) {
  double number = 0;
  std::string_view unit;
  if (ParseNumber(text, &number, &unit) && (unit.empty() || unit == "%")) {
    double share = unit == "%" ? number / 100 : number;
    if (share > 0 && share <= 1) return share;
  }
  return Fail(InvalidArgumentError("'" + text.substr(0, 64) +
                                   "' is not a share: write a percentage such as 5%, up to 100%"));
}

}  // namespace holdfast::cli
