#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace holdfast {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

/// One key=value of a log line.
struct LogField {
  std::string_view key;
  std::string value;
};

template <typename T>
LogField Kv(std::string_view key, const T& value) {
  return {key, fmt::format("{}", value)};
}

/// Writes one line to stderr: time, level, component, event in CamelCase, key=value pairs.
///   Log(LogLevel::kInfo, "SlotSealed", {Kv("job", job), Kv("step", step)});
/// Values with spaces or quotes are quoted. Threads: any.
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

/// Sets the component in this process's log lines ("agent", "coordinator") and drops lines below
/// `level`. Call it once at the start of main.
void ConfigureLog(std::string_view component, LogLevel level);

}  // namespace holdfast
