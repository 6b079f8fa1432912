#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace holdfast {
namespace {
spdlog::logger& Logger() {
  static std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("holdfast",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %L %n %v", spdlog::pattern_time_type::utc);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

void AppendValue(std::string& line, std::string_view value) {
  if (!value.empty() && value.find_first_of(" \"=\n") == std::string_view::npos) {
    line += value;
    return;
  }
  line += '"';
  for (char c : value) {
    if (c == '"' || c == '\\') line += '\\';
    line += c == '\n' ? ' ' : c;
  }
  line += '"';
}
}  // namespace

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  auto& logger = Logger();
  if (!logger.should_log(ToSpdlog(level))) return;
  std::string line(event);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    AppendValue(line, field.value);
  }
  logger.log(ToSpdlog(level), "{}", line);
}

void ConfigureLog(std::string_view component, LogLevel level) {
  Logger().set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %L " + std::string(component) + " %v",
                       spdlog::pattern_time_type::utc);
  Logger().set_level(ToSpdlog(level));
  Logger().flush_on(spdlog::level::debug);
}

}  // namespace holdfast
