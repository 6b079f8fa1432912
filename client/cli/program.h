#pragma once

#include <string>

namespace holdfast::cli {

/// What a program that is launched elsewhere needs to find what its caller would; empty: not set.
struct Caller {
  std::string path;         // PATH
  std::string virtual_env;  // VIRTUAL_ENV, of Python
};
Caller ReadCaller();

/// Where a shell would find `program`: the first executable file of this name in the folders of
/// `path` ("a:b"; relative ones, and an empty one, count from `directory`). What has a slash, or is
/// in none of them, is given back as it is. Links are not followed: the interpreter of a virtual
/// environment knows its environment by the path that it was called by.
std::string FindProgram(const std::string& program, const std::string& path,
                        const std::string& directory);

}  // namespace holdfast::cli
