#include "cli/core/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "cli/core/text.h"

namespace holdfast::cli {

StdoutTraits StdoutTraitsOf(bool no_colour, bool dumb) {
  StdoutTraits traits;
  traits.terminal = ::isatty(STDOUT_FILENO) == 1;
  if (!traits.terminal) return traits;
  traits.colour = !no_colour && !dumb;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) traits.width = size.ws_col;
  return traits;
}

void Output::Write(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void Output::WriteTable(const Table& table) {
  // Wide output is for pipes and wide screens, so no cell is cut.
  Write(table.Render(wide() ? 0 : traits_.width, traits_.colour));
}

void Output::WriteJson(std::string_view kind, const Json& body) {
  Json document = {{"schema", kJsonSchema}, {"kind", kind}};
  document.update(body);
  // Names from untrusted files may not be UTF-8.
  Write(document.dump(json_lines_ ? -1 : 2, ' ', false, Json::error_handler_t::replace));
  Write("\n");
}

void Output::BeginFrame() {
  if (json()) return;
  if (traits_.terminal) {
    Write("\x1b[H\x1b[2J");
  } else if (frames_++ > 0) {
    Write("\n");
  }
}

Status Output::Flush() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return Status::Ok();
  if (errno == EPIPE) return CancelledError("the reader of the output has closed the pipe");
  return ErrnoStatus(errno, "cannot write the output");
}

void PrintMessage(std::string_view text) {
  std::string line = "holdfast: " + std::string(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void PrintError(const Status& status) {
  PrintMessage(std::string(ErrorName(status.code())) + ": " + Printable(status.message()));
}

}  // namespace holdfast::cli
