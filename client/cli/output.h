#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "client/cli/table.h"
#include "storage/base/status.h"

namespace holdfast::cli {

enum class Format { kTable, kWide, kJson };

/// Keys stay in the order in which they are written.
using Json = nlohmann::ordered_json;

/// What the process's stdout is.
struct Surface {
  bool terminal = false;
  bool colour = false;
  size_t width = 0;  // 0: unlimited
};
/// `no_colour` as from NO_COLOR; `dumb` is TERM=dumb.
Surface StdoutSurface(bool no_colour, bool dumb);

/// The data a command shows, on stdout, and what it says beside, on stderr. Main thread only.
class Output {
 public:
  Output(Format format, Surface surface) : format_(format), surface_(surface) {}

  Format format() const { return format_; }
  bool json() const { return format_ == Format::kJson; }
  bool wide() const { return format_ == Format::kWide; }
  const Surface& surface() const { return surface_; }
  /// One JSON document a line, for --watch.
  void set_json_lines(bool lines) { json_lines_ = lines; }

  /// Text as it is; the caller has made it printable.
  void Write(std::string_view text);
  void WriteTable(const Table& table);
  /// Adds "schema": 1 and "kind" in front.
  void WriteJson(std::string_view kind, const Json& body);
  /// `text` in the colour of `tone` where stdout has colours.
  std::string Tint(const std::string& text, Tone tone) const {
    return Coloured(text, tone, surface_.colour);
  }
  /// Starts the next picture of --watch: clears a terminal's screen.
  void BeginFrame();
  /// Everything is out, or an error (disk full; a reader that went away is Cancelled).
  Status Flush();

 private:
  Format format_;
  Surface surface_;
  bool json_lines_ = false;
  int frames_ = 0;
};

/// "holdfast: <text>" on stderr. Threads: any.
void Say(std::string_view text);
/// The error on stderr, for a person, with what to do.
void SayError(const Status& status);

}  // namespace holdfast::cli
