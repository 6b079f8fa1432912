#pragma once

#include <string>

namespace holdfast::cli {

/// The caller's environment variables that are needed to find the same programs on another machine.
/// An empty member means that the variable is not set.
struct Caller {
  std::string path;         // PATH
  std::string virtual_env;  // VIRTUAL_ENV: Python's virtual environment
};
Caller ReadCaller();

/// Finds `program` as a shell does: the first executable file of this name in the folders of `path`
/// ("a:b"; relative and empty ones are relative to `directory`). Returns `program` unchanged if it
/// has a slash or is in no folder. Does not follow links: the interpreter of a virtual environment
/// finds its environment by the path that it was started with.
std::string FindProgram(const std::string& program, const std::string& path,
                        const std::string& directory);

}  // namespace holdfast::cli
