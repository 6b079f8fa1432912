#pragma once

#include <string>
#include <string_view>

#include "base/json/values.h"
#include "base/status.h"
#include "cli/core/table.h"

namespace holdfast::cli {

enum class Format { kTable, kWide, kJson };

/// Properties of the process's stdout.
struct StdoutTraits {
  bool terminal = false;
  bool colour = false;
  size_t width = 0;  // 0: unlimited
};
/// `no_colour`: NO_COLOR is set. `dumb`: TERM=dumb.
StdoutTraits StdoutTraitsOf(bool no_colour, bool dumb);

/// The output of a command on stdout. Main thread only.
class Output {
 public:
  Output(Format format, StdoutTraits traits) : format_(format), traits_(traits) {}

  Format format() const { return format_; }
  bool json() const { return format_ == Format::kJson; }
  bool wide() const { return format_ == Format::kWide; }
  /// Writes one JSON document per line, for --watch.
  void set_json_lines(bool lines) { json_lines_ = lines; }

  /// Writes text unchanged; the caller must have made it printable.
  void Write(std::string_view text);
  void WriteTable(const Table& table);
  /// Writes a document that begins with "schema" (kJsonSchema) and "kind".
  void WriteJson(std::string_view kind, const Json& body);
  /// Returns `text` in the colour of `tone` if stdout has colours.
  std::string Tint(const std::string& text, Tone tone) const {
    return Coloured(text, tone, traits_.colour);
  }
  /// Starts the next frame of --watch: clears a terminal's screen.
  void BeginFrame();
  /// Flushes stdout. Cancelled: the reader has closed the pipe. Other errors: a full disk.
  Status Flush();

 private:
  Format format_;
  StdoutTraits traits_;
  bool json_lines_ = false;
  int frames_ = 0;
};

/// Prints "holdfast: <text>" on stderr. Any thread may call.
void PrintMessage(std::string_view text);
/// Prints the error on stderr.
void PrintError(const Status& status);

}  // namespace holdfast::cli
